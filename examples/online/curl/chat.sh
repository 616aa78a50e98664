#!/usr/bin/env bash
# Ask a question; the answer is shown as the server gives it, its speech goes to a WAV file.
#
#   antiphon serve                      # in another terminal
#   ./chat.sh "What is the capital of France?" answer.wav
#
# ANTIPHON_URL is where the server listens, ANTIPHON_MODEL the model.
set -euo pipefail
url=${ANTIPHON_URL:-http://127.0.0.1:8000}
question=${1:-What is the capital of France?}
out=${2:-answer.wav}

quoted() {  # a text as JSON
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text//$'\t'/\\t}
    printf '"%s"' "${text//$'\n'/\\n}"
}

answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
curl --silent --show-error --fail-with-body "$url/v1/chat/completions" \
    --header "Authorization: Bearer ${ANTIPHON_API_KEY:-none}" \
    --header "Content-Type: application/json" \
    --output "$answer" \
    --data @- <<END || { cat "$answer" >&2; exit 1; }
{
    "model": $(quoted "${ANTIPHON_MODEL:-voice}"),
    "messages": [{"role": "user", "content": $(quoted "$question")}],
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "max_completion_tokens": 60
}
END
sed 's/.*"data":"\([^"]*\)".*/\1/' "$answer" | base64 --decode >"$out"
sed 's/"data":"[^"]*"/"data":"..."/' "$answer"
echo
echo "The speech is in $out." >&2
