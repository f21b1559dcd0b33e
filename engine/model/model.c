/* model.c - an opened checkpoint, whatever it came from: which reader opens it (model_dir.c, model_gguf.c, synthetic.c), the sums over
 * its tensors and their fingerprint, and what others may ask of it. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "engine/model/model_priv.h"

static void hash_samples(XXH3_state_t *h, const void *data, uint64_t bytes)
{
    const uint64_t sample = XD_MIN(bytes, (uint64_t)256);
    if (sample) {
        XXH3_64bits_update(h, data, sample);
        XXH3_64bits_update(h, (const char *)data + (bytes - sample) / 2, sample);
    }
}

static void hash_tensor(XXH3_state_t *h, const model_tensor *t)
{
    const uint64_t shape[] = {t->bytes, t->rows, t->cols, t->fmt};
    XXH3_64bits_update(h, shape, sizeof shape);
    hash_samples(h, t->data, model_data_bytes(t));
    if (t->four.order) {
        const uint32_t how[] = {t->scale.cols, t->scale.fmt, t->four.order, t->four.zeros_less_1};
        XXH3_64bits_update(h, how, sizeof how);
        hash_samples(h, t->scales, model_scale_bytes(t));
        hash_samples(h, t->four.zeros, model_zero_bytes(t));
        hash_samples(h, t->four.factor, t->four.factor ? sizeof(float) : 0);
    } else if (t->scale.rows) {
        XXH3_64bits_update(h, t->scales, model_scale_bytes(t));
    }
}

enum { TOUCH_THREADS = 16, TOUCH_TENSORS = 512 };

typedef struct toucher {
    const model_tensor *tensors;
    size_t n;
    size_t next; /* taken atomically */
} toucher;

static void touch(const void *data, uint64_t at)
{
    if (data)
        (void)((const volatile char *)data)[at];
}

static void *touch_main(void *arg)
{
    toucher *t = arg;
    for (size_t at; (at = __atomic_fetch_add(&t->next, 64, __ATOMIC_RELAXED)) < t->n;)
        for (size_t i = at; i < XD_MIN(at + 64, t->n); i++) {
            const model_tensor *each = &t->tensors[i];
            touch(each->data, 0);
            touch(each->data, model_data_bytes(each) / 2);
            touch(each->scales, 0);
            if (each->four.order) {
                touch(each->scales, model_scale_bytes(each) / 2);
                touch(each->four.zeros, 0);
                touch(each->four.zeros, model_zero_bytes(each) / 2);
                touch(each->four.columns, 0);
                touch(each->four.factor, 0);
            }
        }
    return NULL;
}

static void advise(const model *m, int advice)
{
    for (uint32_t i = 0; i < m->n_files; i++)
        if (!m->files[i].anonymous)
            madvise(m->files[i].base, m->files[i].bytes, advice);
}

/* The fingerprint looks at tens of thousands of places. One by one, each with the kernel's readahead, that reads a third of a file that
 * is not in the page cache before anything else happens; here each costs a page, and many wait for the disk together. */
static void touch_samples(const model *m)
{
    size_t n = 0;
    for (uint32_t l = 0; l < m->params.n_layers; l++)
        n += (size_t)m->layers[l].n_experts * MODEL_MATRICES;
    if (!m->n_files || m->files[0].anonymous || n < TOUCH_TENSORS)
        return;
    toucher t = {.tensors = m->experts, .n = n};
    pthread_t threads[TOUCH_THREADS];
    uint32_t started = 0;
    while (started < TOUCH_THREADS && !pthread_create(&threads[started], NULL, touch_main, &t))
        started++;
    while (started)
        pthread_join(threads[--started], NULL);
}

static void count_tensor(model *m, XXH3_state_t *h, const model_tensor *t, bool of_experts)
{
    hash_tensor(h, t);
    if (!m->fault.says)
        m->fault = model_find_fault(t);
    *(of_experts ? &m->expert_bytes : &m->trunk_bytes) += t->bytes;
    m->format_bytes[of_experts][t->fmt] += t->bytes;
}

static xd_status name_fault(const model *m, xd_err *err)
{
    for (uint32_t i = 0; i < m->n_shards; i++)
        for (uint32_t k = 0; k < safetensors_count(m->shards[i]); k++) {
            const safetensors_entry *e = safetensors_at(m->shards[i], k);
            if (e->data == m->fault.at && e->bytes)
                return xd_fail(err, m->fault.status, 0, "%s: tensor '%s' %s", safetensors_path(m->shards[i]), e->name,
                               m->fault.says);
        }
    return xd_fail(err, XD_INTERNAL, 0, "%s: a tensor in no file %s", m->dir, m->fault.says);
}

/* Adds up bytes and takes the fingerprint: shape and two samples of every tensor. */
static xd_status finish(model *m, xd_err *err)
{
    XXH3_state_t *h = XXH3_createState();
    if (!h)
        return xd_fail(err, XD_NOMEM, 0, "fingerprint of the model");
    advise(m, MADV_RANDOM);
    touch_samples(m);
    XXH3_64bits_reset(h);
    XXH3_64bits_update(h, m->params.arch, sizeof m->params.arch);
    const model_tensor *trunk[] = {&m->embed, &m->final_norm, m->lm_head.data == m->embed.data ? NULL : &m->lm_head,
                                   m->final_norm_bias.data ? &m->final_norm_bias : NULL,
                                   m->lm_head_bias.data ? &m->lm_head_bias : NULL};
    for (size_t i = 0; i < XD_ARRAY_LEN(trunk); i++)
        if (trunk[i])
            count_tensor(m, h, trunk[i], false);
    for (uint32_t l = 0; l < m->params.n_layers; l++) {
        const model_layer *y = &m->layers[l];
        const model_tensor *parts[] = {&y->attn_norm, &y->q,        &y->k,      &y->v,      &y->o,
                                       &y->q_bias,    &y->k_bias,   &y->v_bias, &y->o_bias, &y->q_norm,
                                       &y->k_norm,    &y->ffn_norm, &y->router};
        const model_tensor *latent[] = {&y->latent.q_a,  &y->latent.q_a_bias,  &y->latent.q_a_norm,
                                        &y->latent.kv_a, &y->latent.kv_a_bias, &y->latent.kv_a_norm,
                                        &y->latent.kv_b, &y->latent.k_b,       &y->latent.v_b};
        for (size_t i = 0; m->params.latent.kv_rank && i < XD_ARRAY_LEN(latent); i++)
            count_tensor(m, h, latent[i], false);
        const model_tensor *index[] = {&y->index.q, &y->index.k, &y->index.k_norm, &y->index.k_norm_bias,
                                       &y->index.weights};
        for (size_t i = 0; y->index.own && i < XD_ARRAY_LEN(index); i++)
            count_tensor(m, h, index[i], false);
        for (size_t i = 0; i < XD_ARRAY_LEN(parts); i++)
            count_tensor(m, h, parts[i], false);
        const model_tensor *delta[] = {&y->delta.conv,      &y->delta.conv_k,  &y->delta.conv_v, &y->delta.a_log,
                                       &y->delta.neg_exp_a, &y->delta.dt_bias, &y->delta.norm};
        for (size_t i = 0; y->linear && i < XD_ARRAY_LEN(delta); i++)
            count_tensor(m, h, delta[i], false);
        for (size_t i = 0; y->linear && i < MODEL_DELTA_MATS; i++)
            count_tensor(m, h, &y->delta.in[i], false);
        const model_tensor *shortconv[] = {&y->shortconv.in, &y->shortconv.conv};
        for (size_t i = 0; y->linear && m->params.shortconv.channels && i < XD_ARRAY_LEN(shortconv); i++)
            count_tensor(m, h, shortconv[i], false);
        const model_tensor *ssm[] = {&y->ssm.in,        &y->ssm.conv,    &y->ssm.conv_bias, &y->ssm.a_log,
                                     &y->ssm.neg_exp_a, &y->ssm.dt_bias, &y->ssm.skip,      &y->ssm.norm};
        for (size_t i = 0; y->linear && m->params.ssm.n_heads && i < XD_ARRAY_LEN(ssm); i++)
            count_tensor(m, h, ssm[i], false);
        const model_tensor *some[] = {&y->sinks,
                                      &y->router_bias,
                                      &y->expert_bias[MODEL_GATE],
                                      &y->expert_bias[MODEL_UP],
                                      &y->expert_bias[MODEL_DOWN],
                                      &y->choice_bias,
                                      &y->shared[MODEL_GATE],
                                      &y->shared[MODEL_UP],
                                      &y->shared[MODEL_DOWN],
                                      &y->shared_gate,
                                      &y->gate,
                                      &y->attn_norm_bias,
                                      &y->ffn_norm_bias};
        for (size_t i = 0; i < XD_ARRAY_LEN(some); i++)
            if (some[i]->data)
                count_tensor(m, h, some[i], false);
        for (size_t i = 0; i < (size_t)y->n_experts * MODEL_MATRICES; i++)
            count_tensor(m, h, &y->experts[i], true);
    }
    m->fingerprint = XXH3_64bits_digest(h);
    advise(m, MADV_NORMAL);
    XXH3_freeState(h);
    return m->fault.says ? name_fault(m, err) : XD_OK;
}

/* The directory stays empty: tokenizer and template come with the file. */
static xd_status open_gguf(model *m, const char *path, xd_err *err)
{
    model_clear_defaults(&m->params);
    m->dir = strdup("");
    return m->dir ? model_open_gguf(m, path, err) : xd_fail(err, XD_NOMEM, 0, "handle for '%s'", path);
}

static int64_t written_ns(const struct stat *sb)
{
    return sb->st_mtim.tv_sec * 1000000000ll + sb->st_mtim.tv_nsec;
}

model_file model_file_of(const char *path, const mapped_file *map)
{
    return (model_file){.path = path,
                        .base = map->base,
                        .bytes = map->bytes,
                        .device = map->device,
                        .inode = map->inode,
                        .mtime_ns = map->mtime_ns};
}

int model_file_look(const model_file *f)
{
    struct stat sb;
    if (f->anonymous)
        return MODEL_FILE_SAME;
    if (stat(f->path, &sb))
        return MODEL_FILE_GONE;
    if (sb.st_dev != f->device || sb.st_ino != f->inode)
        return MODEL_FILE_REPLACED;
    if ((uint64_t)sb.st_size < f->bytes)
        return MODEL_FILE_CUT;
    return written_ns(&sb) != f->mtime_ns || (uint64_t)sb.st_size != f->bytes ? MODEL_FILE_WRITTEN : MODEL_FILE_SAME;
}

xd_status model_open(const model_options *opt, model **ret, xd_err *err)
{
    XD_CLEANUP(model_freep) model *m = calloc(1, sizeof *m);
    if (!m)
        return xd_fail(err, XD_NOMEM, 0, "handle for '%s'", opt->path);
    bool synthetic = !strncmp(opt->path, "synthetic:", 10);
    XD_CLEANUP(xd_freep) char *file = NULL;
    xd_status st = synthetic ? XD_OK : model_find(opt->path, &file, err);
    if (st)
        return st;
    st = synthetic ? model_open_synthetic(m, opt, err)
         : file    ? open_gguf(m, file, err)
                   : model_open_dir(m, opt->path, err);
    if (st || (st = finish(m, err)))
        return st;
    if (opt->progress)
        opt->progress(opt->progress_user, 1);
    *ret = XD_TAKE(m);
    return XD_OK;
}

void model_free(model *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->n_files; i++)
        if (m->files[i].anonymous)
            munmap(m->files[i].base, m->files[i].bytes);
    for (uint32_t i = 0; i < m->n_shards; i++)
        safetensors_free(m->shards[i]);
    for (uint32_t i = 0; i < m->n_ggufs; i++)
        gguf_free(m->ggufs[i]);
    free(m->ggufs);
    free(m->shards);
    free(m->files);
    free(m->experts);
    free(m->layers);
    free(m->dir);
    free(m);
}

const model_params *model_get_params(const model *m)
{
    return &m->params;
}
uint32_t model_get_windows(const model *m, uint32_t ret[MODEL_MAX_LAYERS])
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < m->params.n_layers; l++)
        if (model_keeps_kv(&m->layers[l]))
            ret[n++] = m->layers[l].window;
    return n;
}

const model_layer *model_get_layer(const model *m, uint32_t layer)
{
    return &m->layers[layer];
}
const model_tensor *model_embed(const model *m)
{
    return &m->embed;
}
const model_tensor *model_final_norm(const model *m)
{
    return &m->final_norm;
}
const model_tensor *model_final_norm_bias(const model *m)
{
    return &m->final_norm_bias;
}
const model_tensor *model_lm_head(const model *m)
{
    return &m->lm_head;
}
const model_tensor *model_lm_head_bias(const model *m)
{
    return &m->lm_head_bias;
}
const char *model_dir(const model *m)
{
    return m->dir;
}
uint64_t model_expert_bytes(const model *m)
{
    return m->expert_bytes;
}
uint64_t model_trunk_bytes(const model *m)
{
    return m->trunk_bytes;
}
const char *model_formats(const model *m, bool experts, char *out, size_t cap)
{
    const uint64_t *of = m->format_bytes[experts];
    uint64_t all = experts ? m->expert_bytes : m->trunk_bytes, below = UINT64_MAX;
    size_t n = 0;
    *out = 0;
    for (;;) { /* the next smaller one; those of as many bytes together */
        uint64_t most = 0;
        for (int f = 0; f < FMT_COUNT; f++)
            if (of[f] < below)
                most = XD_MAX(most, of[f]);
        if (!most || most < all / 200)
            return out;
        for (int f = 0; f < FMT_COUNT && n < cap; f++)
            if (of[f] == most) {
                const char *name = kern_fmt_get((kern_fmt)f).name;
                double share = 100.0 * (double)most / (double)all;
                n += (size_t)(share > 99.5 ? snprintf(out + n, cap - n, "%s", name)
                                           : snprintf(out + n, cap - n, "%s%s %.0f %%", n ? ", " : "", name, share));
            }
        below = most;
    }
}
uint64_t model_fingerprint(const model *m)
{
    return m->fingerprint;
}

const char *model_chat_template(const model *m)
{
    return m->chat_template;
}

bool model_get_vocabulary(const model *m, tok_gguf *ret)
{
    if (!m->vocabulary.model || !m->vocabulary.n_tokens)
        return false;
    *ret = m->vocabulary;
    return true;
}

const model_file *model_files(const model *m, uint32_t *ret_n)
{
    *ret_n = m->n_files;
    return m->files;
}
