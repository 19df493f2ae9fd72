# docker build -t weighbridge . && docker run --rm -v "$PWD:/models" weighbridge inspect model.gguf
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip wheel --no-cache-dir --wheel-dir /wheels "/source[remote,hash]"

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "weighbridge[remote,hash]" \
    && ! wb --version | grep "pure Python"
RUN useradd --create-home user
USER user
WORKDIR /models
ENTRYPOINT ["wb"]
CMD ["--help"]
