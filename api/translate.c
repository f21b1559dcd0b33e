/* translate.c - what making a chat request of another API's request needs: members, fields that both have, and names of faults back. */
#include "api/translate.h"

xd_status translate_no_memory(xd_err *err)
{
    return xd_fail(err, XD_NOMEM, 0, "out of memory for the request");
}

xd_status translate_need_string(const json_t *holder, const char *where, const char *key, const json_t **ret,
                                xd_err *err)
{
    char param[160];
    snprintf(param, sizeof param, "%s.%s", where, key);
    *ret = json_object_get(holder, key);
    return json_is_string(*ret) ? XD_OK : fields_wrong_type(err, param, "a string", *ret);
}

xd_status translate_rest(const json_t *body, const field *own, size_t n, json_t *chat, xd_err *err)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)body, key, v) {
        size_t i = 0;
        while (i < n && strcmp(own[i].name, key))
            i++;
        if (i == n && json_object_set(chat, key, v))
            return translate_no_memory(err);
    }
    return XD_OK;
}

xd_status translate_tools(const json_t *tools, translate_tool read, json_t *chat, xd_err *err)
{
    if (!tools)
        return XD_OK;
    json_t *list = json_array();
    if (json_object_set_new(chat, "tools", list))
        return translate_no_memory(err);
    xd_status st = XD_OK;
    for (size_t i = 0; !st && i < json_array_size(tools); i++) {
        char where[32];
        snprintf(where, sizeof where, "tools[%zu]", i);
        st = read(json_array_get(tools, i), where, list, err);
    }
    return st;
}

size_t translate_name_by(const char *const names[][2], size_t n, const char *text, xd_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(names[i][0]);
        if (!strncmp(text, names[i][0], len) && strchr(".['", text[len])) {
            xd_buf_puts(out, names[i][1]);
            return len;
        }
    }
    return 0;
}

void translate_fault(translate_name rename, const json_t *body, xd_err *err)
{
    XD_CLEANUP(xd_buf_free) xd_buf param = {0};
    XD_CLEANUP(xd_buf_free) xd_buf msg = {0};
    size_t n = rename(body, err->param, &param);
    if (n && xd_buf_puts(&param, err->param + n))
        snprintf(err->param, sizeof err->param, "%s", param.data);
    /* Names stand in quotes. */
    for (const char *p = err->msg; *p;) {
        xd_buf_putc(&msg, *p);
        n = *p++ == '\'' ? rename(body, p, &msg) : 0;
        p += n;
    }
    if (msg.len && xd_buf_puts(&msg, "") && !msg.failed)
        snprintf(err->msg, sizeof err->msg, "%s", msg.data);
}
