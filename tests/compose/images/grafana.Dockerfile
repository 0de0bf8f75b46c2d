# Stands in for grafana/grafana, which Debian does not have: reads the same files and passes questions on to the data source.
# Like that image it runs as user 472 and holds a wget for health checks. It draws nothing.
FROM triforge-test/debian:bookworm
COPY grafana-entry /usr/local/bin/grafana-entry
RUN printf '#!/usr/bin/python3\nimport sys, urllib.request\nurllib.request.urlopen(sys.argv[-1], timeout=4)\n' > /usr/local/bin/wget \
 && chmod 755 /usr/local/bin/wget /usr/local/bin/grafana-entry \
 && useradd --uid 472 --no-create-home grafana && install -d -o 472 /var/lib/grafana
USER 472
ENTRYPOINT ["grafana-entry"]
