#!/usr/bin/env bash
# Write .env for docker compose: fresh secrets, the profile, and the commit for the images' label. What an existing file has is left
# as it is, but for the commit; what it lacks is added.
#
#   scripts/write_env.sh [FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
FILE="${1:-.env}"
SECRETS=(POSTGRES_PASSWORD TRIFORGE_API_KEY TRIFORGE_ADMIN_API_KEY TRIFORGE_SERVICE_SECRET GRAFANA_PASSWORD)

secret() { head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n'; }

umask 077
if [[ ! -e "$FILE" ]]; then
  cat > "$FILE" <<END
# Secrets of this deployment; not for the repository.
# cpu: local engines and CPU learners; gpu: SGLang and CUDA learners; add watch for Grafana (cpu,watch)
COMPOSE_PROFILES=cpu
END
fi
[[ -z "$(tail -c 1 "$FILE")" ]] || echo >> "$FILE"
added=()
for name in "${SECRETS[@]}"; do
  grep -q "^$name=" "$FILE" && continue
  echo "$name=$(secret)" >> "$FILE"
  added+=("$name")
done
# with "-dirty" where files differ from the commit; none where this is no checkout
if revision="$(git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null)"; then
  sed -i '/^TRIFORGE_REVISION=/d' "$FILE"
  echo "TRIFORGE_REVISION=$revision" >> "$FILE"
fi
if ((${#added[@]})); then
  echo "env: wrote ${added[*]} to $FILE"
else
  echo "env: $FILE has all it needs and is kept; delete it for new secrets (PostgreSQL keeps the old password in its volume)"
fi
