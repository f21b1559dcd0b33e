/* unicode.c - characters and case as Python's str has them: utf8proc's tables plus the mappings to several characters of Unicode's
 * SpecialCasing.txt (those without conditions) and the final sigma. */
#include <string.h>
#include <utf8proc.h>

#include "api/jinja/jinja_priv.h"

int32_t jx_char(const char **at, const char *end)
{
    const unsigned char *u = (const unsigned char *)*at;
    size_t n = u[0] < 0x80 ? 1 : u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
    if (n == 1 || n > (size_t)(end - *at)) {
        (*at)++;
        return u[0];
    }
    *at += n;
    int32_t ch = n == 2 ? u[0] & 0x1F : n == 3 ? u[0] & 0x0F : u[0] & 0x07;
    for (size_t i = 1; i < n; i++)
        ch = ch << 6 | (u[i] & 0x3F);
    return ch;
}

int32_t jx_char_back(const char *start, const char **at)
{
    const char *end = *at;
    do
        (*at)--;
    while (*at > start && ((unsigned char)**at & 0xC0) == 0x80);
    const char *p = *at;
    return jx_char(&p, end);
}

bool jx_is_space(int32_t ch)
{
    if (ch < 0x80)
        return (ch >= 9 && ch <= 13) || (ch >= 0x1C && ch <= 0x20);
    return ch == 0x85 || ch == 0xA0 || ch == 0x1680 || (ch >= 0x2000 && ch <= 0x200A) || ch == 0x2028 || ch == 0x2029 ||
           ch == 0x202F || ch == 0x205F || ch == 0x3000;
}

bool jx_is_printable(int32_t ch)
{
    if (ch < 0x7F)
        return ch >= 0x20;
    switch (utf8proc_category(ch)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static bool is_alpha(int32_t ch)
{
    utf8proc_category_t k = utf8proc_category(ch);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(int32_t ch)
{
    return ch < 0x80 ? ch >= '0' && ch <= '9' : utf8proc_category(ch) == UTF8PROC_CATEGORY_ND;
}

int32_t jx_digit_value(int32_t ch)
{
    if (ch < 0x80)
        return ch >= '0' && ch <= '9' ? ch - '0' : -1;
    if (utf8proc_category(ch) != UTF8PROC_CATEGORY_ND)
        return -1;
    int32_t zero = ch; /* decimal digits come in runs of ten, some of them side by side */
    while (ch - zero < 60 && utf8proc_category(zero - 1) == UTF8PROC_CATEGORY_ND)
        zero--;
    return (ch - zero) % 10;
}

/* Digits that are no decimal digits (Numeric_Type=Digit), as [first, last]. */
static const int32_t odd_digits[][2] = {{0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
                                        {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
                                        {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
                                        {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
                                        {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};

static bool is_digit(int32_t ch)
{
    if (ch < 0x80)
        return ch >= '0' && ch <= '9';
    for (size_t i = 0; i < XD_ARRAY_LEN(odd_digits) && ch >= odd_digits[i][0]; i++)
        if (ch <= odd_digits[i][1])
            return true;
    return is_decimal(ch);
}

static bool is_numeric(int32_t ch)
{
    utf8proc_category_t k = utf8proc_category(ch);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool jx_is_word(int32_t ch)
{
    if (ch < 0x80)
        return (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '_';
    return is_alpha(ch) || is_numeric(ch);
}

static bool is_cased(int32_t ch)
{
    return utf8proc_isupper(ch) || utf8proc_islower(ch) || utf8proc_category(ch) == UTF8PROC_CATEGORY_LT;
}

size_t jx_line_break(const char *at, const char *end)
{
    if (at >= end)
        return 0;
    if (*at == '\r')
        return at + 1 < end && at[1] == '\n' ? 2 : 1;
    if ((*at >= '\n' && *at <= '\f') || (*at >= 0x1C && *at <= 0x1E))
        return 1;
    if (end - at >= 2 && !memcmp(at, "\xC2\x85", 2))
        return 2;
    return end - at >= 3 && (!memcmp(at, "\xE2\x80\xA8", 3) || !memcmp(at, "\xE2\x80\xA9", 3)) ? 3 : 0;
}

/* ---- case ---- */

static const struct {
    int32_t ch;
    const char *upper, *title;
} special[] = {
    {0x00DF, "\x53\x53", "\x53\x73"},
    {0x0149, "\xca\xbc\x4e", "\xca\xbc\x4e"},
    {0x01F0, "\x4a\xcc\x8c", "\x4a\xcc\x8c"},
    {0x0390, "\xce\x99\xcc\x88\xcc\x81", "\xce\x99\xcc\x88\xcc\x81"},
    {0x03B0, "\xce\xa5\xcc\x88\xcc\x81", "\xce\xa5\xcc\x88\xcc\x81"},
    {0x0587, "\xd4\xb5\xd5\x92", "\xd4\xb5\xd6\x82"},
    {0x1E96, "\x48\xcc\xb1", "\x48\xcc\xb1"},
    {0x1E97, "\x54\xcc\x88", "\x54\xcc\x88"},
    {0x1E98, "\x57\xcc\x8a", "\x57\xcc\x8a"},
    {0x1E99, "\x59\xcc\x8a", "\x59\xcc\x8a"},
    {0x1E9A, "\x41\xca\xbe", "\x41\xca\xbe"},
    {0x1F50, "\xce\xa5\xcc\x93", "\xce\xa5\xcc\x93"},
    {0x1F52, "\xce\xa5\xcc\x93\xcc\x80", "\xce\xa5\xcc\x93\xcc\x80"},
    {0x1F54, "\xce\xa5\xcc\x93\xcc\x81", "\xce\xa5\xcc\x93\xcc\x81"},
    {0x1F56, "\xce\xa5\xcc\x93\xcd\x82", "\xce\xa5\xcc\x93\xcd\x82"},
    {0x1F80, "\xe1\xbc\x88\xce\x99", "\xe1\xbe\x88"},
    {0x1F81, "\xe1\xbc\x89\xce\x99", "\xe1\xbe\x89"},
    {0x1F82, "\xe1\xbc\x8a\xce\x99", "\xe1\xbe\x8a"},
    {0x1F83, "\xe1\xbc\x8b\xce\x99", "\xe1\xbe\x8b"},
    {0x1F84, "\xe1\xbc\x8c\xce\x99", "\xe1\xbe\x8c"},
    {0x1F85, "\xe1\xbc\x8d\xce\x99", "\xe1\xbe\x8d"},
    {0x1F86, "\xe1\xbc\x8e\xce\x99", "\xe1\xbe\x8e"},
    {0x1F87, "\xe1\xbc\x8f\xce\x99", "\xe1\xbe\x8f"},
    {0x1F88, "\xe1\xbc\x88\xce\x99", "\xe1\xbe\x88"},
    {0x1F89, "\xe1\xbc\x89\xce\x99", "\xe1\xbe\x89"},
    {0x1F8A, "\xe1\xbc\x8a\xce\x99", "\xe1\xbe\x8a"},
    {0x1F8B, "\xe1\xbc\x8b\xce\x99", "\xe1\xbe\x8b"},
    {0x1F8C, "\xe1\xbc\x8c\xce\x99", "\xe1\xbe\x8c"},
    {0x1F8D, "\xe1\xbc\x8d\xce\x99", "\xe1\xbe\x8d"},
    {0x1F8E, "\xe1\xbc\x8e\xce\x99", "\xe1\xbe\x8e"},
    {0x1F8F, "\xe1\xbc\x8f\xce\x99", "\xe1\xbe\x8f"},
    {0x1F90, "\xe1\xbc\xa8\xce\x99", "\xe1\xbe\x98"},
    {0x1F91, "\xe1\xbc\xa9\xce\x99", "\xe1\xbe\x99"},
    {0x1F92, "\xe1\xbc\xaa\xce\x99", "\xe1\xbe\x9a"},
    {0x1F93, "\xe1\xbc\xab\xce\x99", "\xe1\xbe\x9b"},
    {0x1F94, "\xe1\xbc\xac\xce\x99", "\xe1\xbe\x9c"},
    {0x1F95, "\xe1\xbc\xad\xce\x99", "\xe1\xbe\x9d"},
    {0x1F96, "\xe1\xbc\xae\xce\x99", "\xe1\xbe\x9e"},
    {0x1F97, "\xe1\xbc\xaf\xce\x99", "\xe1\xbe\x9f"},
    {0x1F98, "\xe1\xbc\xa8\xce\x99", "\xe1\xbe\x98"},
    {0x1F99, "\xe1\xbc\xa9\xce\x99", "\xe1\xbe\x99"},
    {0x1F9A, "\xe1\xbc\xaa\xce\x99", "\xe1\xbe\x9a"},
    {0x1F9B, "\xe1\xbc\xab\xce\x99", "\xe1\xbe\x9b"},
    {0x1F9C, "\xe1\xbc\xac\xce\x99", "\xe1\xbe\x9c"},
    {0x1F9D, "\xe1\xbc\xad\xce\x99", "\xe1\xbe\x9d"},
    {0x1F9E, "\xe1\xbc\xae\xce\x99", "\xe1\xbe\x9e"},
    {0x1F9F, "\xe1\xbc\xaf\xce\x99", "\xe1\xbe\x9f"},
    {0x1FA0, "\xe1\xbd\xa8\xce\x99", "\xe1\xbe\xa8"},
    {0x1FA1, "\xe1\xbd\xa9\xce\x99", "\xe1\xbe\xa9"},
    {0x1FA2, "\xe1\xbd\xaa\xce\x99", "\xe1\xbe\xaa"},
    {0x1FA3, "\xe1\xbd\xab\xce\x99", "\xe1\xbe\xab"},
    {0x1FA4, "\xe1\xbd\xac\xce\x99", "\xe1\xbe\xac"},
    {0x1FA5, "\xe1\xbd\xad\xce\x99", "\xe1\xbe\xad"},
    {0x1FA6, "\xe1\xbd\xae\xce\x99", "\xe1\xbe\xae"},
    {0x1FA7, "\xe1\xbd\xaf\xce\x99", "\xe1\xbe\xaf"},
    {0x1FA8, "\xe1\xbd\xa8\xce\x99", "\xe1\xbe\xa8"},
    {0x1FA9, "\xe1\xbd\xa9\xce\x99", "\xe1\xbe\xa9"},
    {0x1FAA, "\xe1\xbd\xaa\xce\x99", "\xe1\xbe\xaa"},
    {0x1FAB, "\xe1\xbd\xab\xce\x99", "\xe1\xbe\xab"},
    {0x1FAC, "\xe1\xbd\xac\xce\x99", "\xe1\xbe\xac"},
    {0x1FAD, "\xe1\xbd\xad\xce\x99", "\xe1\xbe\xad"},
    {0x1FAE, "\xe1\xbd\xae\xce\x99", "\xe1\xbe\xae"},
    {0x1FAF, "\xe1\xbd\xaf\xce\x99", "\xe1\xbe\xaf"},
    {0x1FB2, "\xe1\xbe\xba\xce\x99", "\xe1\xbe\xba\xcd\x85"},
    {0x1FB3, "\xce\x91\xce\x99", "\xe1\xbe\xbc"},
    {0x1FB4, "\xce\x86\xce\x99", "\xce\x86\xcd\x85"},
    {0x1FB6, "\xce\x91\xcd\x82", "\xce\x91\xcd\x82"},
    {0x1FB7, "\xce\x91\xcd\x82\xce\x99", "\xce\x91\xcd\x82\xcd\x85"},
    {0x1FBC, "\xce\x91\xce\x99", "\xe1\xbe\xbc"},
    {0x1FC2, "\xe1\xbf\x8a\xce\x99", "\xe1\xbf\x8a\xcd\x85"},
    {0x1FC3, "\xce\x97\xce\x99", "\xe1\xbf\x8c"},
    {0x1FC4, "\xce\x89\xce\x99", "\xce\x89\xcd\x85"},
    {0x1FC6, "\xce\x97\xcd\x82", "\xce\x97\xcd\x82"},
    {0x1FC7, "\xce\x97\xcd\x82\xce\x99", "\xce\x97\xcd\x82\xcd\x85"},
    {0x1FCC, "\xce\x97\xce\x99", "\xe1\xbf\x8c"},
    {0x1FD2, "\xce\x99\xcc\x88\xcc\x80", "\xce\x99\xcc\x88\xcc\x80"},
    {0x1FD3, "\xce\x99\xcc\x88\xcc\x81", "\xce\x99\xcc\x88\xcc\x81"},
    {0x1FD6, "\xce\x99\xcd\x82", "\xce\x99\xcd\x82"},
    {0x1FD7, "\xce\x99\xcc\x88\xcd\x82", "\xce\x99\xcc\x88\xcd\x82"},
    {0x1FE2, "\xce\xa5\xcc\x88\xcc\x80", "\xce\xa5\xcc\x88\xcc\x80"},
    {0x1FE3, "\xce\xa5\xcc\x88\xcc\x81", "\xce\xa5\xcc\x88\xcc\x81"},
    {0x1FE4, "\xce\xa1\xcc\x93", "\xce\xa1\xcc\x93"},
    {0x1FE6, "\xce\xa5\xcd\x82", "\xce\xa5\xcd\x82"},
    {0x1FE7, "\xce\xa5\xcc\x88\xcd\x82", "\xce\xa5\xcc\x88\xcd\x82"},
    {0x1FF2, "\xe1\xbf\xba\xce\x99", "\xe1\xbf\xba\xcd\x85"},
    {0x1FF3, "\xce\xa9\xce\x99", "\xe1\xbf\xbc"},
    {0x1FF4, "\xce\x8f\xce\x99", "\xce\x8f\xcd\x85"},
    {0x1FF6, "\xce\xa9\xcd\x82", "\xce\xa9\xcd\x82"},
    {0x1FF7, "\xce\xa9\xcd\x82\xce\x99", "\xce\xa9\xcd\x82\xcd\x85"},
    {0x1FFC, "\xce\xa9\xce\x99", "\xe1\xbf\xbc"},
    {0xFB00, "\x46\x46", "\x46\x66"},
    {0xFB01, "\x46\x49", "\x46\x69"},
    {0xFB02, "\x46\x4c", "\x46\x6c"},
    {0xFB03, "\x46\x46\x49", "\x46\x66\x69"},
    {0xFB04, "\x46\x46\x4c", "\x46\x66\x6c"},
    {0xFB05, "\x53\x54", "\x53\x74"},
    {0xFB06, "\x53\x54", "\x53\x74"},
    {0xFB13, "\xd5\x84\xd5\x86", "\xd5\x84\xd5\xb6"},
    {0xFB14, "\xd5\x84\xd4\xb5", "\xd5\x84\xd5\xa5"},
    {0xFB15, "\xd5\x84\xd4\xbb", "\xd5\x84\xd5\xab"},
    {0xFB16, "\xd5\x8e\xd5\x86", "\xd5\x8e\xd5\xb6"},
    {0xFB17, "\xd5\x84\xd4\xbd", "\xd5\x84\xd5\xad"},
};

static const char *special_case(int32_t ch, bool title)
{
    if (ch < 0xDF)
        return NULL;
    size_t low = 0, high = XD_ARRAY_LEN(special);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (special[mid].ch == ch)
            return title ? special[mid].title : special[mid].upper;
        if (special[mid].ch < ch)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static void add_upper(jx *c, jx_sb *b, int32_t ch, bool title, bool trusted)
{
    const char *many = special_case(ch, title);
    if (many)
        jx_sb_add(c, b, many, strlen(many), trusted);
    else
        jx_sb_char(c, b, title ? utf8proc_totitle(ch) : utf8proc_toupper(ch), trusted);
}

static bool is_case_ignorable(int32_t ch)
{
    utf8proc_category_t k = utf8proc_category(ch);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || ch == '\'' || ch == '.' || ch == ':' ||
           ch == 0xB7 || ch == 0x2018 || ch == 0x2019 || ch == 0x2024 || ch == 0x2027;
}

/* A capital sigma at [at, next) ends a word: a cased letter before it and none after it, apart from what is ignored. */
static bool is_final_sigma(const jx_str *s, const char *at, const char *next)
{
    const char *end = s->data + s->len;
    bool before = false;
    while (at > s->data && !before) {
        int32_t ch = jx_char_back(s->data, &at);
        if (!is_case_ignorable(ch)) {
            if (!is_cased(ch))
                return false;
            before = true;
        }
    }
    while (next < end) {
        int32_t ch = jx_char(&next, end);
        if (!is_case_ignorable(ch))
            return before && !is_cased(ch);
    }
    return before;
}

static void add_folded(jx *c, jx_sb *b, int32_t ch, bool trusted)
{
    utf8proc_int32_t to[4];
    int last = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char(ch, to, 4, UTF8PROC_CASEFOLD, &last);
    for (utf8proc_ssize_t i = 0; i < n && i < 4; i++)
        jx_sb_char(c, b, to[i], trusted);
}

static void add_lower(jx *c, jx_sb *b, const jx_str *s, const char *at, const char *next, int32_t ch, bool trusted)
{
    if (ch == 0x130)
        jx_sb_add(c, b, "i\xCC\x87", 3, trusted);
    else if (ch == 0x3A3 && is_final_sigma(s, at, next))
        jx_sb_char(c, b, 0x3C2, trusted);
    else
        jx_sb_char(c, b, utf8proc_tolower(ch), trusted);
}

const jx_str *jx_str_case(jx *c, const jx_str *s, jx_case how)
{
    bool trusted = jx_str_trusted(s), in_word = false;
    jx_sb b = {0};
    const char *end = s->data + s->len;
    jx_charge(c, s->len / 16);
    for (const char *at = s->data, *next = at; at < end; at = next) {
        int32_t ch = jx_char(&next, end);
        bool up = how == JX_UPPER || (how == JX_SWAPCASE && !utf8proc_isupper(ch));
        bool title = (how == JX_TITLE && !in_word) || (how == JX_CAPITALIZE && at == s->data);
        if (ch < 0x80) {
            char low = (char)(ch >= 'A' && ch <= 'Z' ? ch + 32 : ch),
                 high = (char)(ch >= 'a' && ch <= 'z' ? ch - 32 : ch);
            jx_sb_add(c, &b, up || title ? &high : &low, 1, trusted);
            in_word = (low >= 'a' && low <= 'z');
            continue;
        }
        if (how == JX_FOLD) {
            add_folded(c, &b, ch, trusted);
            continue;
        }
        in_word = is_cased(ch);
        if (how == JX_SWAPCASE && !utf8proc_isupper(ch) && !utf8proc_islower(ch))
            jx_sb_char(c, &b, ch, trusted);
        else if (up || title)
            add_upper(c, &b, ch, title, trusted);
        else
            add_lower(c, &b, s, at, next, ch, trusted);
    }
    return jx_str_markup(c, jx_sb_done(c, &b), s->markup);
}

/* ---- classes ---- */

static bool is_alnum(int32_t ch)
{
    return is_alpha(ch) || is_numeric(ch);
}

static bool is_ascii(int32_t ch)
{
    return ch < 0x80;
}

/* Ideographs that stand for numbers: letters by category, but isnumeric() */
static const int32_t number_ideographs[] = {
    0x3405,  0x3483,  0x382A,  0x3B4D,  0x4E00,  0x4E03,  0x4E07,  0x4E09,  0x4E5D,  0x4E8C,  0x4E94,  0x4E96,
    0x4EBF,  0x4EC0,  0x4EDF,  0x4EE8,  0x4F0D,  0x4F70,  0x5104,  0x5146,  0x5169,  0x516B,  0x516D,  0x5341,
    0x5343,  0x5344,  0x5345,  0x534C,  0x53C1,  0x53C2,  0x53C3,  0x53C4,  0x56DB,  0x58F1,  0x58F9,  0x5E7A,
    0x5EFE,  0x5EFF,  0x5F0C,  0x5F0D,  0x5F0E,  0x5F10,  0x62FE,  0x634C,  0x67D2,  0x6F06,  0x7396,  0x767E,
    0x8086,  0x842C,  0x8CAE,  0x8CB3,  0x8D30,  0x9621,  0x9646,  0x964C,  0x9678,  0x96F6,  0xF96B,  0xF973,
    0xF978,  0xF9B2,  0xF9D1,  0xF9D3,  0xF9FD,  0x20001, 0x20064, 0x200E2, 0x20121, 0x2092A, 0x20983, 0x2098C,
    0x2099C, 0x20AEA, 0x20AFD, 0x20B19, 0x22390, 0x22998, 0x23B1B, 0x2626D, 0x2F890};

static bool is_number_text(int32_t ch)
{
    for (size_t i = 0; i < XD_ARRAY_LEN(number_ideographs) && ch >= number_ideographs[i]; i++)
        if (ch == number_ideographs[i])
            return true;
    return is_numeric(ch);
}

/* XID_Start and XID_Continue: by category, but for a few characters of compatibility. */
static bool is_identifier_start(int32_t ch)
{
    if ((ch >= 0xFC5E && ch <= 0xFC63) || ch == 0xFDFA || ch == 0xFDFB ||
        (ch >= 0xFE70 && ch <= 0xFE7E && ch % 2 == 0) || ch == 0x37A || ch == 0x2E2F)
        return false;
    return ch == '_' || is_alpha(ch) || utf8proc_category(ch) == UTF8PROC_CATEGORY_NL || ch == 0x1885 || ch == 0x1886 ||
           ch == 0x2118 || ch == 0x212E;
}

static bool is_identifier_part(int32_t ch)
{
    utf8proc_category_t k = utf8proc_category(ch);
    return is_identifier_start(ch) || k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC ||
           k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_PC || ch == 0xB7 || ch == 0x387 ||
           (ch >= 0x1369 && ch <= 0x1371) || ch == 0x19DA;
}

/* isupper/islower: at least one cased character, and none of the other case. */
static bool one_case(const jx_str *s, bool upper)
{
    bool some = false;
    const char *end = s->data + s->len;
    for (const char *at = s->data; at < end;) {
        int32_t ch = jx_char(&at, end);
        if (upper ? utf8proc_isupper(ch) : utf8proc_islower(ch))
            some = true;
        else if (is_cased(ch))
            return false;
    }
    return some;
}

static bool is_title_text(const jx_str *s)
{
    bool some = false, in_word = false;
    const char *end = s->data + s->len;
    for (const char *at = s->data; at < end;) {
        int32_t ch = jx_char(&at, end);
        bool start = utf8proc_isupper(ch) || utf8proc_category(ch) == UTF8PROC_CATEGORY_LT;
        if (start ? in_word : utf8proc_islower(ch) && !in_word)
            return false;
        in_word = is_cased(ch);
        some = some || in_word;
    }
    return some;
}

bool jx_str_class(const jx_str *s, const char *method, bool *ret)
{
    static const struct {
        const char *name;
        bool (*is)(int32_t ch);
        bool empty; /* the answer for "" */
    } classes[] = {
        {"isalnum", is_alnum, false},         {"isalpha", is_alpha, false},
        {"isascii", is_ascii, true},          {"isdecimal", is_decimal, false},
        {"isdigit", is_digit, false},         {"isidentifier", is_identifier_part, false},
        {"isnumeric", is_number_text, false}, {"isprintable", jx_is_printable, true},
        {"isspace", jx_is_space, false},
    };
    if (!strcmp(method, "isupper") || !strcmp(method, "islower")) {
        *ret = one_case(s, method[2] == 'u');
        return true;
    }
    if (!strcmp(method, "istitle")) {
        *ret = is_title_text(s);
        return true;
    }
    for (size_t i = 0; i < XD_ARRAY_LEN(classes); i++) {
        if (strcmp(method, classes[i].name))
            continue;
        const char *end = s->data + s->len;
        *ret = s->len || classes[i].empty;
        for (const char *at = s->data; at < end && *ret;)
            *ret = classes[i].is(jx_char(&at, end));
        if (classes[i].is == is_identifier_part && s->len) {
            const char *first = s->data;
            int32_t ch = jx_char(&first, end);
            *ret = *ret && is_identifier_start(ch) && ch != 0xE33 && ch != 0xEB3 && ch != 0xFF9E && ch != 0xFF9F;
        }
        return true;
    }
    return false;
}
