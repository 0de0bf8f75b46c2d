#!/usr/bin/env bash
# Back up the compose stack while it runs: the database as it was at one moment, then the files that it names.
#
#   scripts/compose_backup.sh FOLDER
#
# FOLDER appears whole or not at all. What is in flight in Valkey is not in it. Compose's own variables (COMPOSE_FILE,
# COMPOSE_PROJECT_NAME, ...) say which stack.
set -euo pipefail
folder="${1:?usage: scripts/compose_backup.sh FOLDER}"
[[ ! -e "$folder" ]] || { echo "backup: $folder exists, expected a new folder" >&2; exit 1; }
part="$(realpath -m "$folder").part"
cd "$(dirname "$0")/.."
umask 077
rm -rf "$part"
mkdir -p "$part"
docker compose exec -T postgres pg_dump -U triforge -Fc triforge > "$part/triforge.dump"
# tar ends with 1 when a file changed or went while it was read: old versions go all the time
docker compose run --rm -T --no-deps --entrypoint tar trainer -C /data -cf - artifacts > "$part/artifacts.tar" || (($? == 1))
tar -tf "$part/artifacts.tar" > "$part/artifacts.list" || { echo "backup: the files were not read to the end; $part is left" >&2; exit 1; }
mv "$part" "${part%.part}"
echo "backup: $(wc -l < "${part%.part}/artifacts.list") files, $(du -sh "${part%.part}" | cut -f 1) in ${part%.part}"
