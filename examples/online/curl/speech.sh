#!/usr/bin/env bash
# Have a text spoken: to a WAV file, or while it is being made to standard output.
#
#   antiphon serve                      # in another terminal
#   ./speech.sh "The train leaves at seven." train.wav
#   ./speech.sh "The train leaves at seven." - | aplay -r 24000 -f S16_LE
#
# ANTIPHON_URL is where the server listens, ANTIPHON_MODEL the model.
set -euo pipefail
url=${ANTIPHON_URL:-http://127.0.0.1:8000}
text=${1:-The train leaves at seven.}
out=${2:-speech.wav}

quoted() {  # a text as JSON
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text//$'\t'/\\t}
    printf '"%s"' "${text//$'\n'/\\n}"
}

speak() {  # FORMAT
    curl --silent --show-error --no-buffer --fail-with-body "$url/v1/audio/speech" \
        --header "Authorization: Bearer ${ANTIPHON_API_KEY:-none}" \
        --header "Content-Type: application/json" \
        --data @- <<END
{
    "model": $(quoted "${ANTIPHON_MODEL:-voice}"),
    "input": $(quoted "$text"),
    "voice": "alloy",
    "response_format": "$1"
}
END
}

if [[ $out == - ]]; then
    speak pcm  # 16-bit samples, 24,000 a second
else
    part=$(mktemp)
    trap 'rm -f "$part"' EXIT
    speak wav >"$part" || { cat "$part" >&2; exit 1; }
    cat "$part" >"$out"
    echo "The speech is in $out." >&2
fi
