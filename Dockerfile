# The program fedjax-ht; BUILD.md says how to build and run it. Packages of jax bring CUDA themselves.
FROM python:3.13-slim
ARG EXTRAS=run
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY fedjax_ht fedjax_ht
RUN pip install --no-cache-dir ".[$EXTRAS]"
WORKDIR /work
ENTRYPOINT ["fedjax-ht"]
CMD ["--help"]
