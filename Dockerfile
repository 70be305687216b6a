# elmokit serve on a CPU: docker build -t elmokit . && docker run -p 8000:8000 -e ELMOKIT_API_KEY=... elmokit
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY . /elmokit
RUN pip wheel --no-deps --wheel-dir /wheels /elmokit

FROM python:3.12-slim
# First, as it seldom changes, and from PyTorch's own index, since PyPI's wheel for Linux brings gigabytes of CUDA.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)[serve]"
RUN useradd --create-home elmokit
USER elmokit
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/ready')"]
# It does not start without a key. Requests in progress at `docker stop` are answered within its time: give it more with
# -t 70. Another port: docker run -p 9000:8000.
ENTRYPOINT ["elmokit", "serve", "--host", "0.0.0.0", "--port", "8000"]
