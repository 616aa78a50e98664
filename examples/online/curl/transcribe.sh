#!/usr/bin/env bash
# Have written down what is said in a file: WAV, MP3, FLAC, Ogg, MP4 and others.
#
#   antiphon serve                      # in another terminal
#   ./transcribe.sh question.wav
#
# ANTIPHON_URL is where the server listens, ANTIPHON_MODEL the model.
set -euo pipefail
url=${ANTIPHON_URL:-http://127.0.0.1:8000}
file=${1:?give a file with speech}

curl --silent --show-error --fail-with-body "$url/v1/audio/transcriptions" \
    --header "Authorization: Bearer ${ANTIPHON_API_KEY:-none}" \
    --form model="${ANTIPHON_MODEL:-voice}" \
    --form file=@"$file" \
    --form response_format=text
