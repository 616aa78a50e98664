"""A pipeline in one file: a thinker writes, a talker makes frames of two codes of its hidden
states, a vocoder plays a tone for each frame. docs/adding-a-model.md goes through it.
"""

import torch
from torch import nn
from vllm.model_executor.layers.pooler import Pooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.interfaces_base import attn_type
from vllm.model_executor.models.llama import LlamaForCausalLM

from antiphon.core.frames import FrameWindows, Framing
from antiphon.core.prompt_plan import PromptPlan
from antiphon.payload.adapters import FRAMES, Input, OutputNeeds
from antiphon.payload.types import Payload, per_token
from antiphon.pipeline.detokenize import load_tokenizer
from antiphon.pipeline.topology import Edge, EdgeMode, Entry, Stage, StageKind, Topology
from antiphon.worker.capabilities import Capabilities

CODES, SAMPLES, RATE = 32, 240, 24_000  # second codes, samples of a frame (10 ms), Hz


class ChirpTalker(LlamaForCausalLM):  # --- the talker: vLLM's Llama with a decode hook
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_config
        self.capabilities = Capabilities(row_width=config.thinker_hidden, frame_size=2)
        self.listen = nn.Linear(config.thinker_hidden, config.hidden_size, bias=False)
        self.second = nn.Linear(config.hidden_size, CODES, bias=False)
        self.codes = nn.Embedding(CODES, config.hidden_size)

    def predict_frames(self, hidden, token_ids, draw):
        return torch.stack([token_ids, draw(1, self.second(hidden))], 1)

    def embed_frames(self, frames):
        return self.embed_input_ids(frames[:, 0]) + self.codes(frames[:, 1])

    def condition(self, embeds, rows):
        return embeds + self.listen(rows)


class TonePooler(Pooler):  # --- the vocoder: frame (a, b) is 10 ms of 200 + 10 a + 40 b Hz
    def get_supported_tasks(self):
        return {"plugin"}

    def forward(self, hidden_states, pooling_metadata):
        time = torch.arange(SAMPLES) / RATE
        prompts = hidden_states.view(-1, 2).split((pooling_metadata.prompt_lens // 2).tolist())
        pitches = [200 + 10 * frames[:, :1] + 40 * frames[:, 1:] for frames in prompts]
        return [torch.sin(2 * torch.pi * hertz * time).flatten() for hertz in pitches]


@attn_type("attention_free")
class ChirpVocoder(nn.Module, IsAttentionFree):
    is_pooling_model = True

    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.pooler = TonePooler()

    def embed_input_ids(self, input_ids):
        return torch.empty(len(input_ids), 0)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **_):
        return input_ids

    def load_weights(self, weights):
        return set()


class MindOutput:  # --- edge thinker → talker: hidden states of the answer condition the frames
    needs = OutputNeeds(include_hidden=True)

    def __init__(self, context): ...

    def open(self, uid, params):
        return self  # nothing is kept for a request

    def on_tokens(self, token_ids):
        return []

    def on_rows(self, rows):
        return [Payload({"rows": per_token(rows.hidden)})]

    def on_end(self):
        return []


class MindInput:
    def __init__(self, context):
        self.plan = PromptPlan((0,))  # every utterance begins with code 0; given once

    def open(self, uid, params):
        return MindInput(None)

    def on_payload(self, payload, *, last):
        plan, self.plan = self.plan, None
        return Input(plan, rows=payload.fields["rows"].tensor)

    def on_end(self):
        return Input()


class FramesOutput:  # --- edge talker → vocoder
    needs = OutputNeeds(side_outputs=(FRAMES,))

    def __init__(self, context):
        self.framing = Framing.from_options(context.options, "frames") if context.stream else None

    def open(self, uid, params):
        return Chirps(FrameWindows(self.framing))


class Chirps:
    def __init__(self, chunker):
        self.chunker = chunker

    def on_tokens(self, token_ids):
        return []

    def on_rows(self, rows):
        frames = rows.side[FRAMES]
        spoken = frames[frames[:, 0] >= 0]  # a copy: rows are views of a step
        return self.payloads(self.chunker.push(spoken.unbind(0)))

    def on_end(self):
        return self.payloads(self.chunker.flush())

    def payloads(self, windows):
        return [Payload({"frames": per_token(torch.stack(frames))}) for _, frames in windows]


class FramesInput:
    def __init__(self, context): ...

    def open(self, uid, params):
        return self

    def on_payload(self, payload, *, last):
        return Input(PromptPlan(tuple(payload.fields["frames"].tensor.flatten().tolist())))

    def on_end(self):
        return Input()


class TextEntry:  # --- how a text becomes the thinker's prompt
    def __init__(self, checkpoint):
        self.tokenizer = load_tokenizer(checkpoint)

    def prompts(self, request):
        return [self.tokenizer.encode(request.text).ids]


GIVEN = "antiphon.models.checkpoint:given"  # the operator names the folders: --model STAGE=FOLDER
_ROWS = {"enable_prompt_embeds": True, "enable_prefix_caching": False}
TOPOLOGY = Topology(
    name="chirp",
    description="an example: chirps what it thinks",
    stages=(
        Stage("thinker", StageKind.AR, GIVEN, output="text", sampling={"max_tokens": 16}),
        Stage("talker", StageKind.AR, GIVEN, engine=_ROWS, sampling={"max_tokens": 24}),
        Stage("vocoder", StageKind.GENERATION, GIVEN, output="audio", atomic_inputs=True),
    ),
    edges=(
        Edge("mind", "thinker", "talker", EdgeMode.STREAM, "chirp:MindOutput", "chirp:MindInput"),
        Edge(
            name="frames",
            producer="talker",
            consumer="vocoder",
            mode=EdgeMode.STREAM,
            output_adapter="chirp:FramesOutput",
            input_adapter="chirp:FramesInput",
            options={"initial_frames": 4, "steady_frames": 16},
        ),
    ),
    entries=(Entry("chat", "thinker", "chirp:TextEntry"),),
    sample_rate=RATE,
)


def register():  # --- named in the package's entry point `vllm.general_plugins`
    from vllm import ModelRegistry

    ModelRegistry.register_model("ChirpTalker", "chirp:ChirpTalker")
    ModelRegistry.register_model("ChirpVocoder", "chirp:ChirpVocoder")
