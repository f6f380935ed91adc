"""Makes configs: the defaults, a method or a split with its options, and arguments of config files.

Every shipped config takes string arguments:

    --config=quickstart:runlocal                a short check of the same experiment
    --config=quickstart:method=fedproto         the same experiment with another method
    --config=quickstart:partition=pathological  another split, with its default options
    --config=quickstart:method=local,runlocal   several of them

A method or split chosen this way starts from its own defaults, not from those of the config. Any of
its options can be overridden: --config.method.options.tau=50,
--config.partition.options.classes_per_client=3.
"""

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from fedjax_ht.check.docstrings import first_paragraph
from fedjax_ht.check.names import kind_of_value, unknown, unknown_option
from fedjax_ht.check.options import kind_of, options_of
from fedjax_ht.core.user_code import names_object
from fedjax_ht.data.partition import partition_options
from fedjax_ht.lab.config.sections import Config, MethodConfig, PartitionConfig
from fedjax_ht.lab.config.typed import Options
from fedjax_ht.methods import method_factory, names_user_method


@runtime_checkable
class ToDict(Protocol):
    """A config of another library that converts to a dict, such as ml_collections' ConfigDict."""

    def to_dict(self) -> Any: ...


AnyConfig = Config | ToDict | Mapping[str, Any]


def base_config() -> Config:
    """Returns a complete config with all defaults. A config file changes some of its fields."""
    config = Config()
    config.method = method_config(str(config.method.name))
    config.partition = partition_config(config.partition.kind)
    return config


def method_config(name: str, **options) -> MethodConfig:
    """Returns the config of a method with all options, so that you can override any."""
    values = option_values(name, method_options(name), options)
    return MethodConfig(name, Options(values))


def partition_config(kind: str, num_clients: int = 20, **options) -> PartitionConfig:
    """Returns the config of a split over clients with all options, so that you can override any."""
    values = option_values(f"partition {kind!r}", partition_options(kind), options)
    return PartitionConfig(kind, num_clients, options=Options(values))


def typed_config(config: AnyConfig) -> Config:
    """Returns a `Config` that later changes of the given config do not affect.

    Args:
      config: a Config; or fields by name that replace the defaults, as a dict or as an object with
        `to_dict`, such as ml_collections' ConfigDict. A method or a split that they name starts
        from its own options.

    Raises:
      ValueError: a field is unknown or has an invalid value. One line.
    """
    if isinstance(config, Config):
        return copy.deepcopy(config)
    fields = config.to_dict() if isinstance(config, ToDict) else config
    if not isinstance(fields, Mapping):
        raise ValueError(
            f"config is {kind_of_value(config)}; it must be what fl.base_config() or the "
            "get_config() of a config file returns"
        )
    made = base_config()
    if name := _chosen(fields, "method", "name"):
        made.method = method_config(str(name))
    if kind := _chosen(fields, "partition", "kind"):
        made.partition = partition_config(str(kind))
    made.update(fields)
    return made


def _chosen(fields: Mapping[str, Any], section: str, field: str) -> Any:
    """Returns the value of a section's field; None or "" if it is not given."""
    inner = fields.get(section)
    inner = inner if isinstance(inner, Mapping) else {}
    return fields.get(f"{section}.{field}", inner.get(field))


def method_options(name: str) -> dict[str, inspect.Parameter]:
    """Returns the options of a method's factory by name; {} for an object given from Python."""
    if names_object(name):
        return {}
    factory = method_factory(name)
    # local training has its own section in the config; the name BASE+METHOD sets `base`
    fixed = {"training"} | getattr(factory, "keywords", {}).keys()
    return {option: p for option, p in options_of(factory).items() if option not in fixed}


def method_summary(name: str) -> str:
    """Returns a method's summary, from the docstring of its module or of a user's factory."""
    if names_object(name):
        return ""
    factory = method_factory(name)
    factory = inspect.unwrap(getattr(factory, "func", factory))  # for BASE+METHOD, METHOD's factory
    texts = [getattr(sys.modules.get(factory.__module__), "__doc__", "")]
    if names_user_method(name):
        texts.insert(0, factory.__doc__)
    return next(filter(None, map(first_paragraph, texts)), "")


def option_kind(parameter: inspect.Parameter) -> type:
    """Returns the type of an option's values other than None."""
    if parameter.default is None or parameter.default is parameter.empty:
        return kind_of(parameter.annotation)
    return type(parameter.default)


def option_values(
    owner: str, parameters: Mapping[str, inspect.Parameter], chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the chosen value or the default of every option.

    Raises:
      ValueError: `owner`, as messages call it, does not have a chosen option. One line.
    """
    if unexpected := [name for name in chosen if name not in parameters]:
        raise ValueError(unknown_option(owner, unexpected[0], list(parameters)))
    return {name: chosen.get(name, parameters[name].default) for name in parameters}


def apply_argument(
    config: Config,
    argument: str | None,
    setters: Mapping[str, Callable[[Config, str], None]] | None = None,
    **run_locally,
) -> Config:
    """Applies the string argument of a config.

    Args:
      config: the config that the file describes.
      argument: the string after the colon, with parts separated by commas.
      setters: further arguments of this config, name -> (config, value) -> None; `clients=50`
        calls `setters["clients"]`.
      **run_locally: the fields that `runlocal` sets for a short check; by default two rounds.
    """
    setters = setters or {}
    for part in filter(None, (argument or "").split(",")):
        name, _, value = part.partition("=")
        if part == "runlocal":
            config.update(run_locally or {"rounds": 2})
        elif part.startswith("method="):
            config.method = method_config(value)
        elif part.startswith("partition="):
            # num_clients and the seeds of the split are the config's
            options = partition_config(value).options
            config.partition = dataclasses.replace(config.partition, kind=value, options=options)
        elif name in setters:
            setters[name](config, value)
        else:
            known = [
                "runlocal",
                "method=NAME",
                "partition=KIND",
                *(f"{key}=VALUE" for key in setters),
            ]
            raise ValueError(unknown("config argument", part, known))
    return config
