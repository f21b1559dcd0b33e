/* A scratch directory per test; files are written by hand so that each fault can be made exactly. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/model/model.h"
#include "engine/model/rope.h"
#include "engine/model/safetensors.h"
#include "tests/unit/scratch.h"

/* A safetensors file with this header and `data_bytes` zero bytes. */
static const char *put_safetensors(const char *header, size_t data_bytes)
{
    xd_buf b = {0};
    uint64_t n = strlen(header);
    xd_buf_append(&b, &n, 8);
    xd_buf_puts(&b, header);
    for (size_t i = 0; i < data_bytes; i++)
        xd_buf_putc(&b, 0);
    const char *path = put("x.safetensors", b.data, b.len);
    xd_buf_free(&b);
    return path;
}

TestSuite(safetensors, .init = make_dir, .fini = remove_dir);

Test(safetensors, reads_a_good_file)
{
    XD_CLEANUP(safetensors_freep) safetensors *s = NULL;
    xd_err err;
    const char *path = put_safetensors(
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[4,12]},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}  ",
        12);
    cr_assert_eq(safetensors_open(path, &s, &err), XD_OK, "%s", err.msg);
    cr_assert_eq(safetensors_count(s), 2);
    const safetensors_entry *b = safetensors_find(s, "b");
    cr_assert(b && b->bytes == 8 && b->n_dims == 2 && b->shape[0] == 2);
    cr_assert_eq((const char *)b->data - (const char *)safetensors_find(s, "a")->data, 4);
    cr_assert_null(safetensors_find(s, "c"));
    char text[32];
    cr_assert_str_eq(safetensors_shape(b, text, sizeof text), "[2, 1]");
    cr_assert_str_eq(safetensors_shape(safetensors_find(s, "a"), text, sizeof text), "[2]");
    cr_assert_str_eq(safetensors_shape(b, text, 4), "[2,"); /* what there is room for */
}

Test(safetensors, refuses_every_bad_range)
{
    static const struct {
        const char *header, *says;
        size_t bytes;
    } bad[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "outside the file", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "outside the file", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-1,7]}}", "outside the file", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "spans 8 bytes", 8},
        {"{\"a\":{\"dtype\":\"F3\",\"shape\":[2],\"data_offsets\":[0,8]}}", "unknown dtype", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", "overflows", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "not a size", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", "not a size", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
         "overlaps", 12},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", "hole", 12},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "belong to no tensor", 9},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", "dimensions", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"a\":1}", "not a JSON object", 8},
        {"[]", "not a JSON object", 0},
        {"{\"a\":", "not a JSON object", 0},
        {"{\"a\":{}}", "needs dtype", 0},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(bad); i++) {
        safetensors *s = NULL;
        xd_err err;
        cr_assert_eq(safetensors_open(put_safetensors(bad[i].header, bad[i].bytes), &s, &err), XD_BAD_MODEL, "%s",
                     bad[i].header);
        cr_assert(strstr(err.msg, bad[i].says), "%s -> %s", bad[i].header, err.msg);
        cr_assert_null(s);
    }
}

Test(safetensors, refuses_a_header_beyond_the_file)
{
    static const uint64_t lengths[] = {1, 100, 1ull << 40, UINT64_MAX};
    for (size_t i = 0; i < XD_ARRAY_LEN(lengths); i++) {
        safetensors *s = NULL;
        xd_err err;
        cr_assert_eq(safetensors_open(put("x.safetensors", &lengths[i], 8), &s, &err), XD_BAD_MODEL);
    }
    safetensors *s = NULL;
    xd_err err;
    cr_assert_eq(safetensors_open(put("x.safetensors", "abc", 3), &s, &err), XD_BAD_MODEL);
    static const char page[] = "<!DOCTYPE html><title>401</title>";
    cr_assert_eq(safetensors_open(put("x.safetensors", page, sizeof page), &s, &err), XD_BAD_MODEL);
    cr_assert(strstr(err.msg, "a web page, not a safetensors file"), "%s", err.msg);
    cr_assert_eq(safetensors_open("/nonexistent/x", &s, &err), XD_NOT_FOUND);
}

TestSuite(model, .init = make_dir, .fini = remove_dir);

static xd_status open_config(const char *config, xd_err *err)
{
    put("config.json", config, strlen(config));
    model_options opt = {.path = dir};
    model *m = NULL;
    xd_status st = model_open(&opt, &m, err);
    model_free(m);
    return st;
}

Test(model, names_what_is_wrong_in_config_json)
{
#define REST \
    "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":16,\"max_position_embeddings\":32"
    static const struct {
        const char *config, *says;
        xd_status status;
    } bad[] = {
        {"{}", "model_type '(none)' is not known; known are ", XD_UNSUPPORTED},
        {"{\"model_type\":\"gpt9\"}", "'gpt9' is not known", XD_UNSUPPORTED},
        {"{\"model_type\":\"llama\"}", "neither model.safetensors nor", XD_NOT_FOUND}, /* the family's defaults */
        {"{\"model_type\":\"llama\",\"hidden_size\":\"64\"}", "'hidden_size' must be a number", XD_BAD_MODEL},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":1e9}", "'num_hidden_layers' must be a number from 1 to 1024",
         XD_BAD_MODEL},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":1.5}", "whole number", XD_BAD_MODEL},
        {"{\"model_type\":\"llama\",\"num_key_value_heads\":3," REST "}",
         "num_attention_heads (4) must be a multiple of num_key_value_heads (3)", XD_BAD_MODEL},
        {"{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"," REST "}", "hidden_act 'gelu'", XD_UNSUPPORTED},
        {"{\"model_type\":\"llama\",\"quantization_config\":{}," REST "}", "quantized", XD_UNSUPPORTED},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"longrope\"},\"intermediate_size\":8," REST "}",
         "rope type 'longrope'", XD_UNSUPPORTED},
        {"{\"model_type\":\"mixtral\",\"intermediate_size\":8,\"num_local_experts\":4,\"num_experts_per_tok\":5,\"num_key_value_heads\":2," REST
         "}",
         "at most as many", XD_BAD_MODEL},
        {"{\"model_type\":\"llama\",\"eos_token_id\":[\"</s>\"]," REST "}", "must be an id or a list", XD_BAD_MODEL},
        {"{\"model_type\":\"llama\",\"intermediate_size\":8," REST "}", "neither model.safetensors nor", XD_NOT_FOUND},
        {"nonsense", "not valid JSON", XD_BAD_MODEL},
        {"[1]", "not a JSON object", XD_BAD_MODEL},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(bad); i++) {
        xd_err err;
        cr_assert_eq(open_config(bad[i].config, &err), bad[i].status, "%s -> %s", bad[i].config, err.msg);
        cr_assert(strstr(err.msg, bad[i].says), "%s -> %s", bad[i].config, err.msg);
    }
}

Test(model, index_may_not_leave_the_directory)
{
    static const char index[] = "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}";
    put("model.safetensors.index.json", index, sizeof index - 1);
    xd_err err;
    cr_assert_eq(open_config("{\"model_type\":\"llama\",\"intermediate_size\":8," REST "}", &err), XD_BAD_MODEL);
    cr_assert(strstr(err.msg, "leaves the directory"), "%s", err.msg);
}

Test(model, synthetic_model_is_the_same_for_a_seed)
{
    uint64_t prints[3];
    for (int i = 0; i < 3; i++) {
        model_options opt = {.path = "synthetic:tiny", .dtype = "q8_0", .seed = i == 2};
        XD_CLEANUP(model_freep) model *m = NULL;
        xd_err err;
        cr_assert_eq(model_open(&opt, &m, &err), XD_OK, "%s", err.msg);
        prints[i] = model_fingerprint(m);
        cr_assert_eq(model_expert_bytes(m), 4ull * 16 * 3 * 128 * 256 / 32 * 34);
        const model_layer *l = model_get_layer(m, 3);
        /* One contiguous block an expert. */
        cr_assert_eq((const char *)l->experts[1].data - (const char *)l->experts[0].data,
                     (ptrdiff_t)l->experts[0].bytes);
        cr_assert_eq((uintptr_t)l->experts[3].data % 128, 0);
    }
    cr_assert_eq(prints[0], prints[1]);
    cr_assert_neq(prints[0], prints[2]);
}

/* 4 layers of 16 experts take 12 MiB in bf16, and the trunk 5; the kernel's answer to more than there is would be its OOM killer. */
Test(model, synthetic_model_that_does_not_fit_is_refused)
{
    model_options opt = {.path = "synthetic:tiny", .dtype = "bf16", .max_bytes = 4 << 20};
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    cr_assert_eq(model_open(&opt, &m, &err), XD_NOMEM);
    cr_assert_null(m);
    cr_assert(strstr(err.msg, " in bf16 are made in memory, of which 4.00 MiB are available"), "%s", err.msg);
    opt.geometry_only = true; /* takes none */
    cr_assert_eq(model_open(&opt, &m, &err), XD_OK, "%s", err.msg);
}

Test(model, formats_are_told_by_their_share)
{
    model_options opt = {.path = "synthetic:tiny", .dtype = "mxfp4", .geometry_only = true};
    XD_CLEANUP(model_freep) model *m = NULL;
    xd_err err;
    char text[96];
    cr_assert_eq(model_open(&opt, &m, &err), XD_OK, "%s", err.msg);
    cr_assert_str_eq(model_formats(m, true, text, sizeof text), "mxfp4");
    model_formats(m, true, text, 4); /* what there is room for */
    cr_assert_str_eq(text, "mxf");
}

/* Expected values: the formulas of transformers' modeling_rope_utils.py evaluated in double by a separate script, the later ones by
 * transformers 5.24 itself. */
Test(model, rope_frequencies_are_those_of_transformers)
{
    static const struct {
        const char *config;
        uint32_t head_dim;
        double scale, freq[4];
        uint32_t idx[4];
    } cases[] = {
        {"{\"rope_theta\":10000}", 128, 1, {1, 0.01, 0.01, 0.00011547819846894582}, {0, 32, 32, 63}},
        {"{\"rope_parameters\":{\"rope_type\":\"linear\",\"rope_theta\":10000,\"factor\":4}}",
         128,
         1,
         {0.25, 0.0025, 0.0025, 0.00002886954961723645},
         {0, 32, 32, 63}},
        {"{\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
         "\"original_max_position_embeddings\":8192}}",
         128,
         1,
         {1, 0.0013718935677611381, 0.00031269375038406517, 3.068925988914511e-07},
         {0, 30, 33, 63}},
        {"{\"rope_theta\":1000000,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":32768}}",
         128,
         1.138629436111989,
         {1, 0.0010643609812470017, 4.445698525097307e-05, 3.102344401879299e-07},
         {0, 30, 40, 63}},
        {"{\"rope_parameters\":{\"rope_theta\":150000,\"rope_type\":\"yarn\",\"factor\":32,\"beta_fast\":32.0,\"beta_slow\":1.0,\"truncate\":false,"
         "\"original_max_position_embeddings\":4096}}",
         64,
         1.3465735902799727,
         {1, 0.019335001126540362, 0.00045648391922324086, 3.0235114281192144e-07},
         {0, 10, 16, 31}},
        /* the length beside rope_scaling comes before the one inside */
        {"{\"rope_theta\":1000000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":65536},"
         "\"original_max_position_embeddings\":32768}",
         128,
         1.138629436111989,
         {1, 0.0010643609566614032, 4.4456985051510856e-05, 3.102344408034696e-07},
         {0, 30, 40, 63}},
        /* no factor: how much longer the context has become */
        {"{\"rope_theta\":1000000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":null,\"beta_fast\":0,"
         "\"original_max_position_embeddings\":16384}}",
         128,
         1.2079441541679836,
         {1, 0.0007473172736354172, 2.2228492525755428e-05, 1.551172204017348e-07},
         {0, 30, 40, 63}},
        {"{\"rope_theta\":10000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":40,\"original_max_position_embeddings\":4096,"
         "\"beta_fast\":16,\"beta_slow\":2,\"mscale\":0.707,\"mscale_all_dim\":1.0}}",
         64,
         0.9210423553163399,
         {1, 0.10000000149011612, 0.00566666666418314, 3.3338035336782923e-06},
         {0, 8, 16, 31}},
        /* rope_scaling comes before rope_parameters, unless it is empty */
        {"{\"rope_theta\":5000,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
         "\"rope_parameters\":{\"rope_type\":\"linear\",\"rope_theta\":777,\"factor\":8}}",
         128,
         1,
         {0.5, 0.0070710680447518826, 0.002438449300825596, 0.00011423427349654958},
         {0, 32, 40, 63}},
        {"{\"rope_theta\":5000,\"rope_scaling\":{},\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":777}}",
         128,
         1,
         {1, 0.03587479889392853, 0.015613017603754997, 0.001428044750355184},
         {0, 32, 40, 63}},
        {"{\"rope_theta\":5000,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":8}}",
         128,
         1,
         {1, 0.014142136089503765, 0.004876898601651192, 0.00022846854699309915},
         {0, 32, 40, 63}},
    };
    for (size_t i = 0; i < XD_ARRAY_LEN(cases); i++) {
        json_t *o = json_loads(cases[i].config, 0, NULL);
        model_params p = {.head_dim = cases[i].head_dim, .max_positions = 131072};
        xd_err err;
        cr_assert_eq(rope_read(o, "config.json", 10000, 0, &p, &err), XD_OK, "%s", err.msg);
        json_decref(o);
        for (int k = 0; k < 4; k++)
            cr_assert_float_eq(p.ropes[0].inv_freq[cases[i].idx[k]] / cases[i].freq[k], 1, 1e-6, "%s [%u]: %g",
                               cases[i].config, cases[i].idx[k], (double)p.ropes[0].inv_freq[cases[i].idx[k]]);
        cr_assert_float_eq(p.ropes[0].scale, cases[i].scale, 1e-6);
        cr_assert_eq(p.rope_grows, strstr(cases[i].config, "dynamic") != NULL);
    }
}
