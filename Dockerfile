# elmokit serve on a CPU: docker build -t elmokit . && docker run -p 8000:8000 -e ELMOKIT_API_KEY=... elmokit
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY . /elmokit
RUN pip wheel --no-deps --wheel-dir /wheels /elmokit

FROM python:3.12-slim
COPY --from=build /wheels /wheels
# From PyTorch's own index, since PyPI's wheel for Linux brings gigabytes of CUDA.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch \
    && pip install --no-cache-dir "$(echo /wheels/*.whl)[serve]"
RUN useradd --create-home elmokit
USER elmokit
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request as request; request.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["elmokit", "serve", "--host", "0.0.0.0"]
