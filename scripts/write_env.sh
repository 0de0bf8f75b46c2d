#!/usr/bin/env bash
# Write .env for docker compose: fresh secrets and the profile. An existing file is left as it is.
#
#   scripts/write_env.sh [FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
FILE="${1:-.env}"

if [[ -e "$FILE" ]]; then
  echo "env: $FILE exists and is kept; delete it for new secrets (PostgreSQL keeps the old password in its volume)"
  exit 0
fi

secret() { head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n'; }

umask 077
cat > "$FILE" <<END
# Secrets of this deployment; not for the repository.
POSTGRES_PASSWORD=$(secret)
TRIFORGE_API_KEY=$(secret)
TRIFORGE_ADMIN_API_KEY=$(secret)
TRIFORGE_SERVICE_SECRET=$(secret)
# cpu: local engines and CPU learners; gpu: SGLang and CUDA learners
COMPOSE_PROFILES=cpu
END
echo "env: wrote $FILE"
