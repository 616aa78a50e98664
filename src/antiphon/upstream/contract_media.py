"""The contract's part about inputs other than text."""

from __future__ import annotations

from antiphon.upstream.symbols import Names, Seam

_PROCESSOR = "vllm.v1.engine.input_processor"

MEDIA_SEAMS: tuple[Seam, ...] = (
    Seam(
        "audio in prompts",
        "upstream's processor of the model puts a clip's tokens into the prompt and makes the "
        "features that the encoder is given; a stage takes both into its own request",
        "transformers' processor, with upstream's placeholder ranges made by hand",
        (
            Names(
                _PROCESSOR,
                "InputProcessor",
                (
                    "attribute renderer mm_encoder_cache_size",
                    "method process_inputs(request_id, prompt, params, supported_tasks, "
                    "arrival_time, lora_request, tokenization_kwargs, trace_headers, priority, "
                    "data_parallel_rank, resumable, session_id, kv_hints)",
                ),
            ),
            Names(
                "vllm.renderers.base",
                "BaseRenderer",
                (
                    "method render_cmpl(prompts, tok_params, prompt_extras, skip_mm_cache)",
                    "method get_mm_processor()",
                    "method shutdown()",
                ),
            ),
            Names(
                "vllm.multimodal.processing.processor",
                "BaseMultiModalProcessor",
                ("attribute info data_parser",),
            ),
            Names(
                "vllm.multimodal.processing.context",
                "BaseProcessingInfo",
                ("attribute allowed_mm_limits",),
            ),
            Names("vllm.multimodal.parse", "MultiModalDataParser", ("attribute audio_resampler",)),
            Names("vllm.multimodal.audio", "", ("class AudioResampler",)),
            Names(
                "vllm.multimodal.audio",
                "AudioResampler",
                ("attribute target_sr", "method resample(audio, orig_sr)"),
            ),
            Names("vllm.multimodal.inputs", "", ("class MultiModalFeatureSpec",)),
            Names(
                "vllm.multimodal.inputs",
                "PlaceholderRange",
                ("field offset length is_embed", "method get_num_embeds()"),
            ),
            Names(
                "vllm.config",
                "ModelConfig",
                (
                    "attribute supports_multimodal_inputs is_encoder_decoder",
                    "field skip_tokenizer_init",
                ),
            ),
            Names("vllm.v1.engine.core_client", "InprocClient", ("method reset_encoder_cache()",)),
        ),
    ),
)
