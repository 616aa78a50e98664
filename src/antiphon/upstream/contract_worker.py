"""The names of vLLM that workers rely on; part of the list in `contract`."""

from __future__ import annotations

from antiphon.upstream.symbols import Names, Seam

_RUNNER = "vllm.v1.worker.gpu_model_runner"
_INPUT_BATCH = "vllm.v1.worker.gpu_input_batch"

WORKER_SEAMS: tuple[Seam, ...] = (
    Seam(
        "runner version",
        "the stage's runner extends the v1 model runner, so scheduler and worker must use that one",
        "a runner on v2's ModelState",
        (
            Names(
                "vllm.config",
                "VllmConfig",
                ("attribute use_v2_model_runner", "field additional_config"),
            ),
        ),
    ),
    Seam(
        "model runner",
        "a step's rows are taken between execute_model and sample_tokens; a request's own rows "
        "go in when its state is made, or with the embeddings of the tokens that it feeds back, "
        "and are dropped when it is removed",
        "forward hooks on the model",
        (
            Names(
                _RUNNER,
                "GPUModelRunner",
                (
                    "method execute_model(scheduler_output, intermediate_tensors)",
                    "method sample_tokens(grammar_output)",
                    "method load_model(load_dummy_weights, model)",
                    "method get_model()",
                    "method _update_states(scheduler_output)",
                    "method _on_request_state_removed(req_id, req_state)",
                    "method _preprocess(scheduler_output, num_input_tokens, intermediate_tensors)",
                    "attribute execute_model_state input_batch requests model dtype device "
                    "query_start_loc discard_request_mask max_num_reqs max_model_len",
                ),
            ),
            Names(_RUNNER, "ExecuteModelState", ("field hidden_states sample_hidden_states",)),
            Names("vllm.v1.outputs", "SamplerOutput", ("field sampled_token_ids",)),
            Names(
                _INPUT_BATCH,
                "InputBatch",
                ("attribute req_ids num_reqs num_prompt_tokens num_computed_tokens_cpu",),
            ),
            Names(
                "vllm.config",
                "ModelConfig",
                ("field enable_prompt_embeds", "method get_inputs_embeds_size()"),
            ),
            Names("vllm.v1.utils", "CpuGpuBuffer", ("attribute np gpu",)),
            Names(
                "vllm.v1.worker.cpu_model_runner",
                "CPUModelRunner",
                ("method load_model(load_dummy_weights)", "method get_model()"),
            ),
        ),
    ),
    Seam(
        "auxiliary hidden states",
        "hidden states after given layers come from the models' own interface for EAGLE-3, without "
        "a draft model that asks for them",
        "forward hooks on the model's layers",
        (
            Names(
                _RUNNER,
                "GPUModelRunner",
                (
                    "method _get_eagle3_aux_layers_from_config()",
                    "attribute use_aux_hidden_state_outputs input_ids inputs_embeds "
                    "inputs_embeds_size",
                ),
            ),
            Names(_RUNNER, "ExecuteModelState", ("field aux_hidden_states",)),
            Names(
                "vllm.model_executor.models.interfaces", "", ("function supports_eagle3(model)",)
            ),
            Names(
                "vllm.model_executor.model_loader.utils",
                "",
                ("function get_model_cls(model_config)",),
            ),
            Names("vllm.config", "ModelConfig", ("method get_total_num_hidden_layers()",)),
        ),
    ),
    Seam(
        "seeded sampling on CPU",
        "a sample of a partial prefill is taken back by the generator's offset, which CPU "
        "generators lack; ours goes back by state",
        "none needed once upstream goes back by state",
        (
            Names(_RUNNER, "GPUModelRunner", ("method _sample(logits, spec_decode_metadata)",)),
            Names(_INPUT_BATCH, "InputBatch", ("attribute generators req_id_to_index",)),
            Names(_INPUT_BATCH, "CachedRequestState", ("field generator",)),
        ),
    ),
    Seam(
        "AMX on CPU",
        "a process has to ask the kernel for AMX before it computes with it, and vLLM's attention "
        "in bfloat16 does not ask",
        "none needed once vLLM asks; until then float32",
        (
            Names(
                "torch.cpu",
                "",
                ("function _is_amx_tile_supported()", "function _init_amx()"),
            ),
        ),
    ),
    Seam(
        "weight loading",
        "upstream's own loader takes every linear layer, embedding and expert for loaded; ours has "
        "it load as it does, and looks for numbers that were not set",
        "upstream's default loader, and its own check",
        (
            Names(
                "vllm.model_executor.model_loader",
                "",
                ("function register_model_loader(load_format)",),
            ),
            Names(
                "vllm.model_executor.model_loader.default_loader",
                "DefaultModelLoader",
                (
                    "method load_weights(model, model_config)",
                    "method get_all_weights(model_config, model)",
                ),
            ),
        ),
    ),
    Seam(
        "weights that are loaded again",
        "an attempt that fails is undone: upstream leaves a layer's tensors aside, and counts what "
        "came of it in the next attempt",
        "a stage that cannot reload its weights ends",
        (
            Names(
                "vllm.model_executor.model_loader.reload.layerwise",
                "",
                (
                    "function get_layerwise_info(layer)",
                    "function finalize_layerwise_reload(args, kwargs)",
                ),
            ),
            Names(
                "vllm.model_executor.model_loader.reload.types",
                "LayerReloadingInfo",
                ("method can_load()", "field load_numel loaded_weights"),
            ),
        ),
    ),
    Seam(
        "workers",
        "upstream has no setting for the runner's class: the GPU worker makes it in a method of "
        "its own, the CPU worker inside init_device",
        "a worker that repeats init_device's few lines",
        (
            Names(
                "vllm.v1.worker.cpu_worker",
                "CPUWorker",
                (
                    "method init_device()",
                    "method sleep(level)",
                    "method wake_up(tags)",
                    "method shutdown()",
                    "attribute model_runner vllm_config",
                ),
            ),
            Names(
                "vllm.v1.worker.gpu_worker",
                "Worker",
                (
                    "method init_device()",
                    "method _make_model_runner()",
                    "method sleep(level)",
                    "method wake_up(tags)",
                    "method shutdown()",
                    "method reload_weights(args, kwargs)",
                    "attribute model_runner vllm_config device parallel_config",
                ),
            ),
        ),
    ),
)
