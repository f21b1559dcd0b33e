/* fuzz_model.c - model files: the input is a safetensors or a GGUF file (by its first bytes), read through a memory file. What opens
 * is then walked: every tensor's first and last byte, every kind of metadata. */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/model/gguf.h"
#include "engine/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void touch(const void *data, uint64_t bytes)
{
    if (data && bytes)
        sink += ((const uint8_t *)data)[0] + ((const uint8_t *)data)[bytes - 1];
}

static void read_gguf(const char *path)
{
    gguf *g = NULL;
    xd_err err;
    if (gguf_open(path, &g, &err))
        return;
    for (uint32_t i = 0; i < gguf_tensor_count(g); i++)
        touch(gguf_tensor_at(g, i)->data, gguf_tensor_at(g, i)->bytes);
    int64_t v;
    double r;
    const char *const *strings;
    const float *floats;
    static const char *const keys[] = {"general.architecture", "general.alignment", "tokenizer.ggml.tokens", "k", "a"};
    for (size_t i = 0; i < XD_ARRAY_LEN(keys); i++) {
        sink += gguf_int(g, keys[i], 0, 0, 100, &v, &err) + gguf_real(g, keys[i], 0, 0, 1, &r, &err);
        sink += gguf_strings(g, keys[i], &strings) + gguf_f32s(g, keys[i], &floats);
        const char *s = gguf_string(g, keys[i]);
        sink += s ? strlen(s) : 0;
    }
    gguf_free(g);
}

static void read_safetensors(const char *path)
{
    safetensors *s = NULL;
    xd_err err;
    if (safetensors_open(path, &s, &err))
        return;
    for (uint32_t i = 0; i < safetensors_count(s); i++)
        touch(safetensors_at(s, i)->data, safetensors_at(s, i)->bytes);
    safetensors_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    char path[32];
    if (fd < 0)
        return 0;
    if (write(fd, data, size) == (ssize_t)size) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (size >= 4 && !memcmp(data, "GGUF", 4))
            read_gguf(path);
        else
            read_safetensors(path);
    }
    close(fd);
    return 0;
}
