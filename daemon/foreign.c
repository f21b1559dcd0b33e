/* foreign.c - flags of llama.cpp's server and of vLLM that are not ours: what to say instead. docs/desktop.md has the common ones as a table. */
#include <string.h>

#include "daemon/daemon_priv.h"

#define FITS      "nothing is to be set, what fits lies on the GPU; --vram-budget=SIZE bounds it"
#define ONE_GPU   "one GPU is used; --engine.gpu=N says which"
#define TEMPLATE  "nothing is to be set, the model's chat template tells"
#define ALWAYS    "it is always so"
#define NO_HUB    "nothing is downloaded; get the model with 'hf download', then give its path to -m"
#define SAMPLING  "a request says it; what it leaves out comes from the model's generation_config.json"
#define PLAIN     "this is plain HTTP; a proxy in front does TLS (docs/desktop.md)"
#define TEXT_ONLY "a model reads and writes text here"
#define FILES     "the model's files tell"

/* Names are separated by spaces; '-' and '_' within them are the same. */
static const struct {
    const char *names, *instead;
} flags[] = {
    {"-ngl --gpu-layers --n-gpu-layers -ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe -nkvo --no-kv-offload "
     "--cpu-offload-gb --fit -fit",
     FITS},
    {"-sm --split-mode -ts --tensor-split -mg --main-gpu -tp --tensor-parallel-size -pp --pipeline-parallel-size -dp "
     "--data-parallel-size --enable-expert-parallel",
     ONE_GPU},
    {"--ctx-size", "use --max-model-len=N"},
    {"-np --parallel", "use --max-num-seqs=N"},
    {"-b --batch-size -ub --ubatch-size", "use --max-num-batched-tokens=N"},
    {"-t -tb --threads-batch", "use --engine.threads=N"},
    {"-ctk --cache-type-k -ctv --cache-type-v --kv-cache-dtype", "use --kv-dtype=f16, f32 or q8_0, for K and V alike"},
    {"--mlock --no-mmap", "memory that a GPU reads is pinned anyway; --host-tier=pool copies the experts first"},
    {"--chat-template-file", "use --chat-template=FILE"},
    {"--default-chat-template-kwargs", "use --chat-template-kwargs=JSON"},
    {"--reasoning-budget",
     "a thought has no limit of its own; --chat-template-kwargs='{\"enable_thinking\": false}' is its 0, where the template has that word"},
    {"-a", "use --alias NAME"},
    {"-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url --download-dir --revision", NO_HUB},
    {"-to --timeout", "use --request-timeout=TIME"},
    {"--no-webui", "use --no-chat-page; the page is /chat"},
    {"--allowed-origins", "use --cors-origin=ORIGIN"},
    {"-v --verbose --log-verbosity -lv --uvicorn-log-level --log-level", "use --log.level=debug"},
    {"--disable-log-requests --no-enable-log-requests", "use --log.requests=no"},
    {"--jinja --no-jinja", "a template is always Jinja; --chat-template=FILE sets another than the model's"},
    {"--enable-auto-tool-choice --tool-call-parser", TEMPLATE},
    {"--reasoning-parser --enable-reasoning", TEMPLATE "; --reasoning-format=none leaves thoughts in the content"},
    {"-fa --flash-attn -cb --cont-batching --enable-chunked-prefill", ALWAYS},
    {"--swa-full --disable-sliding-window",
     "layers with a window keep K and V of their window; prompts that begin alike are reused all the same"},
    {"--cache-reuse --cache-prompt", "prompts that begin alike are reused; --no-enable-prefix-caching ends it"},
    {"--metrics", "/metrics is always there"},
    {"--slots --props", "/health says what the server does, /v1/models its context"},
    {"--ssl-key-file --ssl-keyfile --ssl-cert-file --ssl-certfile --ssl-ca-certs", PLAIN},
    {"--trust-remote-code", "no code of a model is ever run"},
    {"-q --quantization --load-format --hf-config-path --rope-scaling --rope-theta --rope-freq-base --rope-freq-scale",
     FILES},
    {"--temp --temperature --top-k --top-p --min-p --repeat-penalty -n --predict --n-predict -s", SAMPLING},
    {"--generation-config", "use --sampling-defaults=model or none"},
    {"-mm --mmproj --embedding --embeddings --rerank --reranking --pooling --task --runner --limit-mm-per-prompt",
     TEXT_ONLY},
    {"--lora --lora-modules --enable-lora", "one model is served, as it is"},
    {"-md --model-draft --speculative-config", "there is no speculative decoding"},
    {"--enforce-eager", "nothing is compiled at the start"},
};

static bool same(const char *a, const char *b, size_t len)
{
    size_t i = 0;
    while (i < len && (a[i] == '_' ? '-' : a[i]) == (b[i] == '_' ? '-' : b[i]))
        i++;
    return i == len;
}

const char *foreign_flag(const char *name, size_t len)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(flags); i++)
        for (const char *at = flags[i].names; *at; at += strspn(at, " ")) {
            size_t n = strcspn(at, " ");
            if (n == len && same(at, name, n))
                return flags[i].instead;
            at += n;
        }
    return NULL;
}
