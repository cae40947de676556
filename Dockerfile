# The router's wheel in an image of its own: no engine, no GPU library, no compiler. Two stages, so that pip, its cache
# and the compiler of the modules on a request's path stay behind. The wheel brings the policies along: `active: NAME`
# needs no file.
#
#     docker build -t warmroute .
#     docker run -p 8000:8000 -v "$PWD/my-config:/etc/warmroute:ro" warmroute
#     docker run -p 8000:8000 warmroute http://10.0.0.1:8100 http://10.0.0.2:8100
#
# It runs as user 10001 and writes no file but those that its configuration names, so the root may be read-only. The Helm
# chart (deploy/helm/warmroute) runs it so, and its `hf`, a dependency's, to download tokenizers.
#
# The admin listener stays on the container's loopback: `docker exec` reaches it, the network does not.

FROM python:3.11-slim AS build
WORKDIR /src
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY constraints.txt setup.py pyproject.toml MANIFEST.in README.md LICENSE ./
COPY configs configs
COPY router router
COPY scorers scorers
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN WARMROUTE_COMPILE=1 pip wheel --no-deps --wheel-dir /dist . \
    && python -m venv /opt/warmroute \
    && /opt/warmroute/bin/pip install -c constraints.txt "$(echo /dist/*.whl)[harmony,kimi,mistral,otel,picker]"

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home warmroute
COPY --from=build /opt/warmroute /opt/warmroute
ENV PATH=/opt/warmroute/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
EXPOSE 8000

# Liveness, not readiness: a router whose engines are down must not be restarted. Override for another port or https.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=2)"]

# exec form: SIGTERM reaches the router, which lets streams finish (limits.grace_s).
ENTRYPOINT ["warmroute", "serve"]
CMD ["--config", "/etc/warmroute/config.yaml"]
