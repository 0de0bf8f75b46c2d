# Stands in for postgres:16-alpine: makes the cluster, the user and the database at the first start.
FROM triforge-test/debian:bookworm
ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/bin:/bin PGDATA=/var/lib/postgresql/data
COPY postgres-entry /usr/local/bin/postgres-entry
RUN chmod +x /usr/local/bin/postgres-entry && install -d -o postgres -g postgres /var/lib/postgresql/data
VOLUME /var/lib/postgresql/data
ENTRYPOINT ["postgres-entry"]
