"""Names of vLLM and transformers that stages' models rely on; part of the list in `contract`."""

from __future__ import annotations

from antiphon.upstream.symbols import Names, Seam

_LOGITS = "vllm.v1.sample.logits_processor.interface"
_UTILS = "vllm.model_executor.models.utils"
_VOCABULARY = "vllm.model_executor.layers.vocab_parallel_embedding"
_QWEN3_OMNI = "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe"
_QWEN2_5_OMNI = "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni"

_DECODER = (
    "method embed_input_ids(input_ids)",
    "method forward(input_ids, positions, intermediate_tensors, inputs_embeds)",
)


def _codec(name: str, prefix: str, decode: str) -> tuple[Names, ...]:
    """A codec of transformers of which only the decoding half is made."""
    modeling = f"transformers.models.{name}.modeling_{name}"
    configuration = f"transformers.models.{name}.configuration_{name}"
    return (
        Names(modeling, f"{prefix}Model", ("attribute quantizer acoustic_decoder", decode)),
        Names(modeling, f"{prefix}DecoderOutput", ("field audio_values",)),
        Names(configuration, f"{prefix}Config", ("attribute semantic_model_config hop_length",)),
    )


MODEL_SEAMS: tuple[Seam, ...] = (
    Seam(
        "stage models",
        "models that vLLM does not know are registered by name; the talker's grammar is a "
        "logits processor, a vocoder a pooling model without attention; a stage takes its own part "
        "of a checkpoint's configuration and weights",
        "none needed: these are upstream's extension interfaces, listed because they change "
        "between releases",
        (
            Names(
                "vllm.model_executor.models.registry",
                "_ModelRegistry",
                ("method register_model(model_arch, model_cls)",),
            ),
            Names(
                _LOGITS,
                "LogitsProcessor",
                (
                    "method validate_params(sampling_params)",
                    "method apply(logits)",
                    "method is_argmax_invariant()",
                    "method update_state(batch_update)",
                ),
            ),
            Names(_LOGITS, "", ("class BatchUpdate",)),
            Names(
                "vllm.v1.sample.logits_processor.builtin",
                "",
                ("function process_dict_updates(req_entries, batch_update, new_state)",),
            ),
            Names("vllm.model_executor.layers.pooler", "", ("class Pooler",)),
            Names("vllm.model_executor.models.interfaces", "", ("class IsAttentionFree",)),
            Names(
                "vllm.model_executor.models.interfaces_base", "", ("function attn_type(attn_type)",)
            ),
            Names(_UTILS, "", ("class AutoWeightsLoader WeightsMapper",)),
            Names(_UTILS, "AutoWeightsLoader", ("method load_weights(weights, mapper)",)),
            Names(_UTILS, "WeightsMapper", ("field orig_to_new_prefix",)),
            Names(
                "vllm.model_executor.utils",
                "",
                ("function set_weight_attrs(weight, weight_attrs)",),
            ),
            Names(
                "vllm.model_executor.model_loader.weight_utils",
                "",
                ("function default_weight_loader(param, loaded_weight)",),
            ),
            Names(
                "vllm.model_executor.model_loader.default_loader",
                "DefaultModelLoader",
                ("hook is_unused_checkpoint_weight allow_patterns_overrides",),
            ),
            Names("vllm.model_executor.models.interfaces_base", "", ("hook is_pooling_model",)),
            # A function of the whole checkpoint's configuration, which gives the stage's.
            Names("vllm.config", "ModelConfig", ("field hf_overrides",)),
            Names("vllm.v1.pool.metadata", "", ("class PoolingMetadata",)),
            Names(
                "vllm.v1.pool.metadata",
                "PoolingMetadata",
                ("field prompt_lens pooling_params pooling_states",),
            ),
            Names("vllm.v1.pool.metadata", "PoolingStates", ("attribute hidden_states_cache",)),
        ),
    ),
    Seam(
        "talkers",
        "a talker is a decoder of vLLM with inputs and outputs of its own around it",
        "decoders of ours on vLLM's attention layer",
        (
            Names("vllm.model_executor.models.qwen3_moe", "", ("class Qwen3MoeModel",)),
            Names("vllm.model_executor.models.qwen3_moe", "Qwen3MoeModel", _DECODER),
            Names("vllm.model_executor.models.qwen3", "", ("class Qwen3Model",)),
            Names("vllm.model_executor.models.qwen3", "Qwen3Model", _DECODER),
            Names("vllm.model_executor.models.llama", "", ("class LlamaModel",)),
            Names(
                "vllm.model_executor.models.llama",
                "LlamaModel",
                (
                    "attribute embed_tokens",
                    "method embed_input_ids(input_ids)",
                    "method forward(input_ids, positions, intermediate_tensors, inputs_embeds, "
                    "extra_layer_kwargs)",
                ),
            ),
            Names("vllm.model_executor.models.interfaces", "", ("class SupportsMRoPE",)),
            Names(
                "vllm.model_executor.models.interfaces",
                "SupportsMRoPE",
                ("method get_mrope_input_positions(input_tokens, mm_features)",),
            ),
            Names(
                "vllm.compilation.decorators",
                "",
                (
                    "function support_torch_compile(cls, dynamic_arg_dims, mark_unbacked_dims, "
                    "enable_if, is_encoder)",
                ),
            ),
            Names(_UTILS, "", ("function maybe_prefix(prefix, name)",)),
            Names(_VOCABULARY, "", ("class ParallelLMHead VocabParallelEmbedding",)),
            Names("vllm.model_executor.layers.logits_processor", "", ("class LogitsProcessor",)),
            Names(
                "vllm.model_executor.layers.logits_processor",
                "LogitsProcessor",
                ("method forward(lm_head, hidden_states, embedding_bias, skip_gather)",),
            ),
            Names("vllm.config", "ModelConfig", ("field hf_text_config",)),
            Names(
                "vllm.model_executor.model_loader.utils",
                "",
                ("hook packed_modules_mapping hf_to_vllm_mapper",),
            ),
        ),
    ),
    Seam(
        "codecs of transformers",
        "vocoders are built of transformers' own modules, the published ones or their parts",
        "copies of these modules",
        (
            Names(_QWEN3_OMNI, "", ("class Qwen3OmniMoeCode2Wav",)),
            Names(
                _QWEN3_OMNI,
                "Qwen3OmniMoeCode2Wav",
                ("attribute total_upsample", "method forward(codes, kwargs)"),
            ),
            Names(
                _QWEN3_OMNI,
                "",
                (
                    "class Qwen3OmniMoeCausalConvNet(in_channels, out_channels, kernel_size, "
                    "dilation, stride, groups)",
                    "class Qwen3OmniMoeCode2WavDecoderResidualUnit(dim, dilation)",
                    "class Qwen3OmniMoeCode2WavTransformerModel(config)",
                    "class Qwen3OmniMoeConvNeXtBlock(dim)",
                    "class Qwen3OmniMoeSnakeBeta(in_features, alpha)",
                ),
            ),
            Names(_QWEN2_5_OMNI, "", ("class Qwen2_5OmniToken2WavModel",)),
            Names(
                _QWEN2_5_OMNI,
                "Qwen2_5OmniToken2WavModel",
                (
                    "method forward(code, conditioning, reference_mel, num_steps, guidance_scale, "
                    "sway_coefficient, kwargs)",
                ),
            ),
            *_codec("xcodec2", "Xcodec2", "method decode(audio_codes, latents, kwargs)"),
            *_codec(
                "neucodec",
                "NeuCodec",
                "method decode(audio_codes, latents, audio_codes_mask, kwargs)",
            ),
        ),
    ),
)
