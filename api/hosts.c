/* hosts.c - the names that this server answers to.
 *
 * A web page can give its own DNS name the address 127.0.0.1 after the browser has loaded it (DNS rebinding). Its scripts then reach a
 * server that listens on loopback alone, and the browser takes both for one site: CORS and the header Origin do not matter. What the page
 * cannot change is the header Host, where its name stands. So a server that asks for no key answers to addresses (whoever names one uses
 * no DNS), to the names of this machine, and to those in server.allowed_hosts. Ports do not matter: a page chooses its own.
 *
 * As Ollama, Jupyter and webpack's server do it, but for one thing: neither every *.local (anybody in the local network may answer to
 * it) nor *.internal is taken. Does not look at Origin: exchange.c. */
#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>

#include "api/api_priv.h"

enum { MAX_NAME_BYTES = 255 };

/* The part of a Host header before the port, in lower case, without an address's brackets and a name's last dot (the root's). */
static bool read_name(const char *host, char name[static MAX_NAME_BYTES + 1])
{
    bool brackets = *host == '[';
    host += brackets;
    size_t n = strcspn(host, brackets ? "]" : ":");
    const char *rest = host + n + (brackets && host[n]);
    if (n > MAX_NAME_BYTES || (brackets && host[n] != ']') || (*rest && *rest != ':'))
        return false;
    for (size_t i = 0; i < n; i++)
        name[i] = (char)tolower((unsigned char)host[i]);
    name[n - (n > 1 && name[n - 1] == '.')] = 0;
    return true;
}

/* IPv4 also in the short forms that programs take: no name ends in a number. A zone of IPv6 ("fe80::1%eth0") is not looked at. */
static bool is_address(const char *name)
{
    struct in_addr in;
    struct in6_addr in6;
    char copy[MAX_NAME_BYTES + 1];
    snprintf(copy, sizeof copy, "%s", name);
    copy[strcspn(copy, "%")] = 0;
    return inet_pton(AF_INET6, copy, &in6) == 1 || (!strpbrk(name, " \t") && inet_aton(name, &in));
}

static bool is_localhost(const char *name)
{
    static const char word[] = "localhost";
    size_t n = strlen(name), len = strlen(word);
    return n >= len && !strcmp(name + n - len, word) && (n == len || name[n - len - 1] == '.');
}

/* `name` is the machine's ("gpu.example.com"), its first part, or that with .local, by which others in the local network find it. */
static bool is_machine(const char *machine, const char *name)
{
    size_t part = strcspn(machine, ".");
    return *machine && (!strcasecmp(name, machine) ||
                        (!strncasecmp(name, machine, part) && (!name[part] || !strcmp(name + part, ".local"))));
}

static bool is_listed(const char *list, const char *name)
{
    const char *word;
    size_t n;
    for (const char *at = list; conf_next_word(&at, &word, &n);) {
        n -= n > 1 && word[n - 1] == '.';
        if (n && n == strlen(name) && !strncasecmp(word, name, n))
            return true;
    }
    return false;
}

bool api_host_ok(const api_settings *s, const char *host)
{
    char name[MAX_NAME_BYTES + 1];
    bool checked = (!s->n_keys || *s->allowed_hosts) && !is_listed(s->allowed_hosts, "*");
    if (!checked || !host || !*host) /* browsers always say one */
        return true;
    return read_name(host, name) && (is_address(name) || is_localhost(name) || is_machine(s->machine, name) ||
                                     !strcasecmp(name, s->listen_host) || is_listed(s->allowed_hosts, name));
}
