#!/usr/bin/env bash
# Bring back what scripts/compose_backup.sh has kept, into a stack that has lost everything, and start it.
#
#   scripts/compose_restore.sh FOLDER
#
# Writes over nothing: it wants a database without tables and an empty volume of artifacts.
set -euo pipefail
folder="$(realpath "${1:?usage: scripts/compose_restore.sh FOLDER}")"
cd "$(dirname "$0")/.."
[[ -s "$folder/triforge.dump" && -s "$folder/artifacts.tar" ]] || { echo "restore: $folder is no backup of scripts/compose_backup.sh" >&2; exit 1; }
refuse() {
  echo "restore: $1; docker compose down, delete the volumes postgres, artifacts and valkey if nothing in them is wanted, try again" >&2
  exit 1
}
in_files() { docker compose run --rm -T --no-deps --entrypoint "$1" trainer "${@:2}"; }
ask() { docker compose exec -T postgres psql -U triforge -d triforge -tAc "$1"; }

docker compose stop
docker compose up -d --wait postgres valkey
tables="$(ask "select count(*) from information_schema.tables where table_schema = 'public'")"
[[ "$tables" == 0 ]] || refuse "the database has $tables tables"
there="$(in_files find /data/artifacts -mindepth 1 -maxdepth 1)"
[[ -z "$there" ]] || refuse "the volume of artifacts holds $(wc -l <<< "$there") entries"
# it remembers which groups were done with: those of steps that the backup does not have would never be played again
docker compose exec -T valkey valkey-cli FLUSHALL > /dev/null
docker compose exec -T postgres pg_restore -U triforge -d triforge --single-transaction --exit-on-error < "$folder/triforge.dump"
in_files tar -C /data -xf - < "$folder/artifacts.tar"
# versions that no row names were trained after the database was copied, from groups that will be played anew: a learner that
# found one of them would take it for what the new groups have led to
named="$(ask "select run_id || '/' || role || '/v' || lpad(version::text, 6, '0') from weights")"
in_files sh -c '
  cat > /tmp/named
  for folder in /data/artifacts/weights/*/*/v* /data/artifacts/checkpoints/*/*/v*; do
    version="${folder##*/}" role="${folder#/data/artifacts/*/}"
    name="${role%/*}/${version%%-*}"  # a checkpoint is called by its version and its digest
    [ ! -d "$folder" ] || grep -qxF "$name" /tmp/named || { echo "restore: forgetting $name"; rm -rf "$folder"; }
  done' <<< "$named"
docker compose up -d --wait
echo "restore: everything of $folder is back and healthy"
