#!/usr/bin/env bash
# Is the server well, and what does it serve? Exit code 0 if every stage serves.
#
#   antiphon serve                      # in another terminal
#   ./health.sh
#
# ANTIPHON_URL is where the server listens.
set -euo pipefail
url=${ANTIPHON_URL:-http://127.0.0.1:8000}

get() {
    curl --silent --show-error --fail-with-body \
        --header "Authorization: Bearer ${ANTIPHON_API_KEY:-none}" "$url$1"
    echo
}

get /health     # status 503, and so exit code 22, if a stage does not serve
get /version
get /v1/models
