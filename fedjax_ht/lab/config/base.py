"""Configs of config files, as ConfigDicts, and their typed form, `sections.Config`.

Every shipped config takes string arguments:

    --config=quickstart:runlocal                a short check of the same experiment
    --config=quickstart:method=fedproto         the same experiment with another method
    --config=quickstart:partition=pathological  another split, with its default options
    --config=quickstart:method=local,runlocal   several of them

A method or a split that is named so starts from its own defaults, not from those of the config; any
of its options can be overridden: --config.method.options.tau=50,
--config.partition.options.classes_per_client=3.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args, get_origin

from fedjax_ht.core.annotations import hints_of, kind_of, options_of
from fedjax_ht.core.extras import needing
from fedjax_ht.core.names import kind_of_value, unknown, unknown_option
from fedjax_ht.core.user_code import names_object
from fedjax_ht.data.partition import partition_options
from fedjax_ht.lab.config.sections import Config, MethodConfig, PartitionConfig
from fedjax_ht.lab.config.typed import check_names, from_plain, plain_hint, to_plain
from fedjax_ht.methods import method_factory

with needing("fedjax_ht.lab.config"):
    from ml_collections import ConfigDict, config_dict

if TYPE_CHECKING:

    class ConfigTree(ConfigDict):
        """A ConfigDict whose entries have any type: ml_collections declares none of them."""

        def __getattr__(self, attribute) -> Any: ...
        def __getitem__(self, key: str) -> Any: ...
else:
    ConfigTree = ConfigDict

AnyConfig = Config | ConfigDict  # what functions take that users call with what get_config returns


def base_config() -> ConfigTree:
    """Returns a complete config with all defaults. A config file changes what its experiment
    changes."""
    config = _as_config_dict(Config())
    config.method = method_config(config.method.name)
    config.partition = partition_config(config.partition.kind)
    return config


def method_config(name: str, **options) -> ConfigTree:
    """Returns a method with all options of its factory, so that any can be overridden."""
    parameters = method_options(name)
    config = _as_config_dict(MethodConfig(name, option_values(name, parameters, options)))
    return _with_placeholders(config, parameters)


def partition_config(kind: str, num_clients: int = 20, **options) -> ConfigTree:
    """Returns a split among clients with all options of its kind, so that any can be overridden."""
    parameters = partition_options(kind)
    values = option_values(f"partition {kind!r}", parameters, options)
    config = _as_config_dict(PartitionConfig(kind, num_clients, options=values))
    return _with_placeholders(config, parameters)


def typed_config(config: AnyConfig | Mapping[str, Any]) -> Config:
    """Returns the typed form of a config, every field checked.

    Raises:
      ValueError: a field is missing, unknown, or has a value that it cannot have. One line.
    """
    if isinstance(config, Config):
        return config
    if isinstance(config, ConfigDict):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise ValueError(
            f"config is {kind_of_value(config)}; it must be what fl.base_config() or the "
            "get_config() of a config file returns"
        )
    check_names(Config, config)
    return from_plain(Config, config)


def method_options(name: str) -> dict[str, inspect.Parameter]:
    """Returns the options of a method's factory, by name; none of an object given from Python."""
    if names_object(name):
        return {}
    factory = method_factory(name)
    # the config has a section of local training; the name BASE+METHOD sets `base`
    fixed = {"training"} | getattr(factory, "keywords", {}).keys()
    return {option: p for option, p in options_of(factory).items() if option not in fixed}


def option_values(
    owner: str, parameters: Mapping[str, inspect.Parameter], chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the chosen value or the default of every option.

    Raises:
      ValueError: an option is chosen that `owner`, as messages call it, does not have. One line.
    """
    if unexpected := [name for name in chosen if name not in parameters]:
        raise ValueError(unknown_option(owner, unexpected[0], list(parameters)))
    return {name: chosen.get(name, parameters[name].default) for name in parameters}


def as_entry(method: str, options: Mapping[str, Any]) -> str:
    """Returns a method with options as an entry, "fedral:blocks=100"."""
    entry = method
    for name, value in options.items():
        entry += f":{name}={value}"
    return entry


def apply_argument(
    config: ConfigTree,
    argument: str | None,
    setters: Mapping[str, Callable[[ConfigTree, str], None]] | None = None,
    **run_locally,
) -> ConfigTree:
    """Applies the string argument of a config.

    Args:
      config: the config that the file describes.
      argument: the text behind the colon, parts with commas between them.
      setters: further arguments of this config, name -> (config, value) -> None; `clients=50`
        calls `setters["clients"]`.
      **run_locally: the fields that make it a first check, of a few rounds.
    """
    setters = setters or {}
    for part in filter(None, (argument or "").split(",")):
        name, _, value = part.partition("=")
        if part == "runlocal":
            config.update_from_flattened_dict(run_locally or {"rounds": 2})
        elif part.startswith("method="):
            config.method = method_config(value)
        elif part.startswith("partition="):
            config.partition = partition_config(value, config.partition.num_clients)
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


def _as_config_dict(section: Any) -> ConfigTree:
    config = ConfigTree(to_plain(section))
    for name, hint in hints_of(type(section)).items():
        # A ConfigDict takes values of one type, but a reference to any object takes all; here for
        # weights, which are text or a mapping.
        if any(get_origin(kind) is Mapping for kind in get_args(plain_hint(hint))):
            config[name] = config_dict.FieldReference(config[name], field_type=object)
        elif hasattr(hint, "__dataclass_fields__"):
            config[name] = _as_config_dict(getattr(section, name))
    return config


def _with_placeholders(
    config: ConfigTree, parameters: Mapping[str, inspect.Parameter]
) -> ConfigTree:
    """Gives options that are None the type of their other values."""
    for name, value in config.options.items():
        if value is None:
            kind = kind_of(parameters[name].annotation)
            config.options[name] = config_dict.placeholder(kind)
    return config
