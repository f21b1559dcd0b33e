/* tokenize.c - `expertd tokenize`: the ids and pieces of a text, to see what a model will see. */
#include <jansson.h>
#include <string.h>

#include "daemon/daemon_priv.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"

static xd_status read_stdin(xd_buf *out, xd_err *err)
{
    char piece[65536];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, stdin)) > 0)
        xd_buf_append(out, piece, n);
    return ferror(stdin) || out->failed ? xd_fail(err, XD_IO, 0, "reading standard input") : XD_OK;
}

/* A GGUF file carries its vocabulary, a directory has a tokenizer.json. */
static xd_status open_tokenizer(const config *cfg, tokenizer **ret, xd_err *err)
{
    XD_CLEANUP(xd_freep) char *file = NULL;
    if (!strncmp(cfg->model.path, "synthetic:", 10))
        return xd_fail(err, XD_UNSUPPORTED, 0, "a synthetic model has no tokenizer");
    xd_status st = model_find(cfg->model.path, &file, err);
    if (!st && !file)
        return tok_from_dir(cfg->model.path, ret, err);
    XD_CLEANUP(model_freep) model *m = NULL;
    const model_options opt = {.path = file};
    if (!st)
        st = model_open(&opt, &m, err);
    tok_gguf vocabulary;
    if (!st && !model_get_vocabulary(m, &vocabulary))
        return xd_fail(err, XD_NOT_FOUND, 0, "'%s' has no vocabulary", cfg->model.path);
    return st ? st : tok_from_gguf(&vocabulary, ret, err);
}

int tokenize_main(const cli *c, const config *cfg)
{
    xd_err err;
    if (!c->text) {
        fputs("expertd: tokenize needs a text: expertd tokenize [MODEL] TEXT\n", stderr);
        return EXIT_USAGE;
    }
    if (!c->argument && !access(c->text, F_OK))
        fprintf(stderr, "expertd: '%s' is taken as the text; of a model, say: expertd tokenize %s TEXT\n", c->text,
                c->text);
    XD_CLEANUP(xd_buf_free) xd_buf text = {0};
    XD_CLEANUP(tok_freep) tokenizer *t = NULL;
    XD_CLEANUP(tok_ids_free) tok_ids ids = {0};
    xd_status st = strcmp(c->text, "-") ? xd_buf_puts(&text, c->text) ? XD_OK : XD_NOMEM : read_stdin(&text, &err);
    if (!st)
        st = open_tokenizer(cfg, &t, &err);
    if (!st)
        st = tok_encode(t, text.data ? text.data : "", text.len, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL, &ids, &err);
    if (st)
        return cli_fail(st, &err);
    json_t *list = json_array();
    for (size_t i = 0; i < ids.len; i++) {
        const char *piece = tok_token_text(t, ids.data[i]);
        if (c->json)
            json_array_append_new(list, json_integer(ids.data[i]));
        else
            printf("%7u  %s\n", ids.data[i], piece ? piece : "");
    }
    if (c->json) {
        json_dumpf(list, stdout, JSON_COMPACT);
        putchar('\n');
    } else {
        printf("%zu tokens (%s)\n", ids.len, tok_kind(t));
    }
    json_decref(list);
    return 0;
}
