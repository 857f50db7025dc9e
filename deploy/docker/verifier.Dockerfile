# syntax=docker/dockerfile:1
# The verifier on NVIDIA GPUs: deploy/docker/build.sh verifier --load
# torch's wheels bring CUDA's libraries; the base brings what the container toolkit looks for.
ARG CUDA_DIGEST

FROM nvidia/cuda:13.0.2-base-ubuntu24.04@${CUDA_DIGEST} AS python
# Triton compiles a launcher in C when a kernel is first used, so a compiler stays in the image.
# Ubuntu keeps one build of a package, so a pinned one could not be installed for long.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3 python3-dev \
    && rm -rf /var/lib/apt/lists/*

FROM python AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN deploy/docker/steps.sh build verifier-cuda /opt/forerun

FROM python
ARG REVISION=unknown
ARG VERSION=unknown
LABEL org.opencontainers.image.title="forerun-verifier" \
      org.opencontainers.image.description="Forerun's verifier on NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/forerun /opt/forerun
COPY deploy/sbom/verifier-cuda.cdx.json /usr/share/forerun/sbom.cdx.json
ENV PATH=/opt/forerun/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    HF_HOME=/tmp/huggingface \
    HF_HUB_OFFLINE=1 \
    TRITON_CACHE_DIR=/tmp/triton \
    CUDA_CACHE_PATH=/tmp/cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /tmp
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 9464, timeout=3); c.request('GET', '/livez'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["forerun", "verify"]
CMD ["--model", "/models/target", "--device", "cuda", "--listen", "0.0.0.0:50051", "--http", "0.0.0.0:9464"]
