#!/usr/bin/env bash
# Ask a question; the text of the answer is shown while it is being written.
#
#   antiphon serve                      # in another terminal
#   ./chat_stream.sh "Why is the sky blue?"
#
# ANTIPHON_URL is where the server listens, ANTIPHON_MODEL the model.
set -euo pipefail
url=${ANTIPHON_URL:-http://127.0.0.1:8000}
question=${1:-What is the capital of France?}

quoted() {  # a text as JSON
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text//$'\t'/\\t}
    printf '"%s"' "${text//$'\n'/\\n}"
}

# Each event is a line: data: {"choices":[{"delta":{"content":" blue"}, ...}], ...}
content='"content":"(([^"\]|\\.)*)"'
curl --silent --show-error --no-buffer --fail-with-body "$url/v1/chat/completions" \
    --header "Authorization: Bearer ${ANTIPHON_API_KEY:-none}" \
    --header "Content-Type: application/json" \
    --data @- <<END |
{
    "model": $(quoted "${ANTIPHON_MODEL:-voice}"),
    "messages": [{"role": "user", "content": $(quoted "$question")}],
    "max_completion_tokens": 60,
    "stream": true
}
END
    while IFS= read -r line || [[ -n $line ]]; do
        if [[ $line == *'{"error":'* ]]; then
            echo "$line" >&2
            exit 1
        elif [[ $line =~ $content ]]; then
            printf '%b' "${BASH_REMATCH[1]}"
        fi
    done
echo
