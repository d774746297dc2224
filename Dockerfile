# The program and all that it needs to run, on Debian 13 (for CPUs):
#
#   docker build -t trireme .          (or podman)
#   docker run --rm trireme train --version
#   docker run --rm -v "$PWD:/work" trireme run.sh -n 2 /usr/local/share/trireme/configs/tiny_llama.json
#
# scripts/check_distribution.sh container runs these lines without a container engine; of the instructions that change a file
# system it knows FROM, WORKDIR, ENV, COPY and RUN.
FROM debian:trixie-slim AS build
WORKDIR /trireme
COPY . .
RUN scripts/setup.sh
RUN cmake --preset cpu-release -DTRIREME_TESTS=OFF && cmake --build --preset cpu-release --target train
RUN DESTDIR=/installed cmake --install build/cpu-release --prefix /usr/local --strip

FROM debian:trixie-slim
RUN apt-get update && \
    apt-get install -y --no-install-recommends openmpi-bin libhdf5-310 libdnnl3.6 libfmt10 libspdlog1.15 libxxhash0 \
      libhwloc15 libpcre2-8-0 libutf8proc3 zlib1g libzstd1 libgomp1 && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
COPY --from=build /installed/usr/local /usr/local
ENV PATH=/usr/local/share/trireme/scripts:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /work
CMD ["train", "--help"]
