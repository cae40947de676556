# The router alone: no engine, no GPU library, no compiler. Two stages, so that pip and its cache stay behind.
#
#     docker build -t warmroute .
#     docker run -p 8000:8000 -v "$PWD/my-config:/etc/warmroute:ro" warmroute
#
# The admin listener stays on the container's loopback: `docker exec` reaches it, the network does not.

FROM python:3.11-slim AS build
WORKDIR /src
RUN python -m venv /opt/warmroute
COPY constraints.txt pyproject.toml README.md ./
COPY router router
COPY scorers scorers
RUN /opt/warmroute/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt .

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home warmroute
COPY --from=build /opt/warmroute /opt/warmroute
COPY configs/policies /etc/warmroute/policies
ENV PATH=/opt/warmroute/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
EXPOSE 8000

# Alive, not ready: a router whose engines are down must not be restarted. Another port or https: override it.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=2)"]

# exec form: SIGTERM reaches the router, which lets streams finish (limits.grace_s).
ENTRYPOINT ["warmroute", "serve"]
CMD ["--config", "/etc/warmroute/config.yaml"]
