# syntax=docker/dockerfile:1
# The daemon, on x86-64 and aarch64: deploy/docker/build.sh edge --load
ARG PYTHON_312_DIGEST
ARG PYTHON_312_SLIM_DIGEST

FROM python:3.12-bookworm@${PYTHON_312_DIGEST} AS build
# Of aarch64; steps.sh says what it leaves out.
ARG ARM_ARCH=armv8.2-a+dotprod
WORKDIR /src
COPY . .
RUN ARM_ARCH="${ARM_ARCH}" deploy/docker/steps.sh build edge /opt/forerun

FROM python:3.12-slim-bookworm@${PYTHON_312_SLIM_DIGEST}
ARG REVISION=unknown
ARG VERSION=unknown
LABEL org.opencontainers.image.title="forerun-edge" \
      org.opencontainers.image.description="Forerun's edge daemon" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/forerun /opt/forerun
COPY deploy/sbom/edge.cdx.json /usr/share/forerun/sbom.cdx.json
# State below /tmp is gone with the container: mount a volume and name it here to keep token, journal and trials.
ENV PATH=/opt/forerun/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    XDG_STATE_HOME=/tmp/state \
    XDG_DATA_HOME=/tmp/data \
    XDG_CONFIG_HOME=/tmp/config \
    XDG_CACHE_HOME=/tmp/cache
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8080, timeout=3); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["forerun", "edge"]
CMD ["--draft", "/models/draft.gguf", "--listen", "0.0.0.0:8080"]
