# docker build -t fedrepro . && docker run -p 8888:8888 fedrepro
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
WORKDIR /fedrepro
COPY . .
RUN make setup
ENV PATH=/fedrepro/.venv/bin:$PATH
EXPOSE 8888
CMD ["make", "lab", "ARGS=--ip=0.0.0.0 --no-browser"]
