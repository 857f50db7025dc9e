# syntax=docker/dockerfile:1
# The verifier without a GPU, to try things out: deploy/docker/build.sh verifier-cpu --load
# Python 3.11, because the lock has torch's CPU build for that release.
ARG PYTHON_311_DIGEST
ARG PYTHON_311_SLIM_DIGEST

FROM python:3.11-bookworm@${PYTHON_311_DIGEST} AS build
# torch without CUDA is in an index of its own; the lock's hash decides what is taken from there.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY . .
RUN PIP_OPTIONS="--extra-index-url ${TORCH_INDEX}" deploy/docker/steps.sh build verifier-cpu /opt/forerun

FROM python:3.11-slim-bookworm@${PYTHON_311_SLIM_DIGEST}
ARG REVISION=unknown
ARG VERSION=unknown
LABEL org.opencontainers.image.title="forerun-verifier-cpu" \
      org.opencontainers.image.description="Forerun's verifier on a processor" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/forerun /opt/forerun
COPY deploy/sbom/verifier-cpu.cdx.json /usr/share/forerun/sbom.cdx.json
COPY lab/demo_models/target /models/target
ENV PATH=/opt/forerun/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    HF_HOME=/tmp/huggingface \
    HF_HUB_OFFLINE=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 9464, timeout=3); c.request('GET', '/livez'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["forerun", "verify"]
CMD ["--model", "/models/target", "--listen", "0.0.0.0:50051", "--http", "0.0.0.0:9464"]
