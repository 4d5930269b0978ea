package redact

import (
	"regexp"
	"slices"
	"strings"
)

// Text is a text without secrets, of any number of lines.
func Text(s string) string {
	s = privateKeys(s)
	lines := strings.SplitAfter(s, "\n")
	for i, line := range lines {
		lines[i] = Line(line)
	}
	return strings.Join(lines, "")
}

var (
	keyBlock = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----.*?(-----END [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----|\z)`)
	keyBegin = regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY`)
	keyEnd   = regexp.MustCompile(`-----END [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----`)
	// keyRest is the end of a key whose beginning is not there.
	keyRest = regexp.MustCompile(`(?m)(^[^\n]*[A-Za-z0-9+/=]{16,}[^\n]*\n)*^[^\n]*-----END [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----`)
)

// privateKeys takes PEM keys out, also those that begin or end outside the text.
func privateKeys(s string) string {
	if !strings.Contains(s, "PRIVATE KEY") {
		return s
	}
	return keyRest.ReplaceAllString(keyBlock.ReplaceAllString(s, Mark), Mark)
}

// form is a secret that is known wherever it stands; $1 is kept.
type form struct {
	parts []string // in lower case: a line with none of them has no such secret
	re    *regexp.Regexp
}

var byForm = []form{
	{[]string{"bearer"}, regexp.MustCompile(`(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}`)},
	{[]string{"authorization"}, regexp.MustCompile(`(?i)(\bauthorization\\*["']?\s*[:=]\s*\\*["'\[]*)(?:(?:bearer|basic|digest|negotiate|token|aws4-hmac-sha256)\s+)?[^\s"'\\,\]]+(?:\s*[A-Za-z]+=[^\s"',]+,?)*`)},
	{[]string{"eyj"}, regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`)},
	{[]string{"akia", "asia", "abia", "acca"}, regexp.MustCompile(`()\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}\b`)},
	{
		[]string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "aiza", "hvs.", "age-secret-key-1", "sk-"},
		regexp.MustCompile(`()\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AIza|hvs\.|AGE-SECRET-KEY-1|sk-(?:live|test|proj)-)[A-Za-z0-9_-]{12,}`),
	},
}

var (
	userinfo = regexp.MustCompile(`://[^/\s"'<>]*@(sha256:)?`)

	yamlLine = regexp.MustCompile(`^(\s*(?:- )?["']?([A-Za-z0-9_./-]+)["']?:\s+)(\S.*)$`)
	// assigned is a name and what joins it to its value, assignee that value.
	assigned = regexp.MustCompile(`([A-Za-z0-9_.$/-]+)\\*["']?\s*[:=]\s*`)
	assignee = regexp.MustCompile(`^(?:\\+"[^"]*(?:"|$)|"(?:[^"\\]|\\.)*(?:"|$)|'[^']*(?:'|$)|[^\s"',;&}\])]+)`)
	unquoted = regexp.MustCompile(`^[^\s"',;&}\])]+`)
	// furtherName is a name that a value is assigned to, or a flag.
	furtherName = regexp.MustCompile(`^(?:--?[A-Za-z]|[A-Za-z0-9_.$/-]+\s*[:=])`)
	flagValue   = regexp.MustCompile(`(^|[\s"'\[])(--?[A-Za-z][A-Za-z0-9-]*)(\\*["']?(?:,\s*|\s+))(\\*"[^"]*(?:"|$)|'[^']*(?:'|$)|[^\s"',\\-](?:[^\s"',]|,[^\s"',-])*)`)
	// nameParts has one of each name that Secret takes for one of a secret, whatever
	// joins its other parts.
	nameParts = []string{"pass", "secret", "token", "key", "auth", "cookie", "cred", "docker", "pwd", "psk", "signature"}
)

// Line is one line without secrets. It may end with a newline.
func Line(s string) string {
	text := strings.TrimRight(s, "\r\n")
	return line(text) + s[len(text):]
}

func line(s string) string {
	s = runs(s)
	lower := strings.ToLower(s)
	has := func(part string) bool { return strings.Contains(lower, part) }
	for _, f := range byForm {
		if slices.ContainsFunc(f.parts, has) {
			s = f.re.ReplaceAllString(s, "${1}"+Mark)
		}
	}
	if has("://") && has("@") {
		s = userinfo.ReplaceAllStringFunc(s, func(m string) string {
			if strings.HasSuffix(m, "@sha256:") { // the digest of an image
				return m
			}
			return "://" + Mark + "@"
		})
	}
	if !slices.ContainsFunc(nameParts, has) {
		return s
	}
	if m := yamlLine.FindStringSubmatch(s); m != nil && Secret(m[2]) && isValue(m[3]) && !opens(m[3]) && !strings.HasPrefix(m[3], `"`) {
		return m[1] + Mark
	}
	return flags(named(s))
}

// runs takes out what is a secret by its length and characters alone: a secret access
// key of AWS, which has 40 of base64, and a bootstrap token of Kubernetes, of 6 and 16
// joined by a dot.
func runs(s string) string {
	var out strings.Builder
	kept := 0 // up to where s is in out
	for start := 0; start < len(s); start++ {
		end := start
		for end < len(s) && inRun(s[end]) {
			end++
		}
		if run := s[start:end]; isAWSSecret(run) || isBootstrapToken(run) {
			out.WriteString(s[kept:start] + Mark)
			kept = end
		}
		start = end
	}
	if kept == 0 {
		return s
	}
	out.WriteString(s[kept:])
	return out.String()
}

func inRun(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '.'
}

const (
	digits = "0123456789"
	lowers = "abcdefghijklmnopqrstuvwxyz"
	uppers = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

func isAWSSecret(s string) bool {
	s = strings.TrimRight(s, ".")
	return len(s) == 40 && strings.ContainsAny(s, digits) && strings.ContainsAny(s, lowers) && strings.ContainsAny(s, uppers) && !strings.Contains(s, ".")
}

func isBootstrapToken(s string) bool {
	id, secret, ok := strings.Cut(strings.TrimRight(s, "."), ".")
	return ok && len(id) == 6 && len(secret) == 16 && strings.ContainsAny(id, digits) && strings.ContainsAny(secret, digits) &&
		strings.Trim(id+secret, digits+lowers) == ""
}

// named takes out values after a secret's name. Of other names the values are looked at
// in turn, each part once: its time grows with the length of s alone.
func named(s string) string {
	var out strings.Builder
	for {
		m := assigned.FindStringSubmatchIndex(s)
		if m == nil {
			out.WriteString(s)
			return out.String()
		}
		name := s[m[2]:m[3]]
		out.WriteString(s[:m[1]])
		s = s[m[1]:]
		if !Secret(name) || opens(s) || strings.HasPrefix(strings.TrimLeft(s, quotes), Mark) {
			continue // without a look for the value's end, which may be that of s
		}
		value := unquotedWhole(s, assignee.FindString(s))
		if masked, ok := mask(value); ok {
			out.WriteString(masked)
			s = s[len(value):]
		}
	}
}

// unquotedWhole is the whole of the value that s begins with, where it is in no quotes: a
// comma or semicolon is part of a secret, unless a further name with a value, a space or
// the end comes after it.
func unquotedWhole(s, value string) string {
	if strings.HasPrefix(strings.TrimLeft(value, `\`), `"`) || strings.HasPrefix(value, "'") {
		return value
	}
	for {
		rest := s[len(value):]
		end := len(rest) - len(strings.TrimLeft(rest, ",;"))
		if end == 0 || furtherName.MatchString(rest[end:]) {
			return value
		}
		more := unquoted.FindString(rest[end:])
		if more == "" {
			return value
		}
		value = s[:len(value)+end+len(more)]
	}
}

func flags(s string) string {
	return flagValue.ReplaceAllStringFunc(s, func(m string) string {
		p := flagValue.FindStringSubmatch(m)
		masked, ok := mask(p[4])
		if !Secret(p[2]) || !ok {
			return m
		}
		return p[1] + p[2] + p[3] + masked
	})
}

// quotes may stand before a value, and after it.
const quotes = "\\\"'`"

// mask is a value without its secret, in its quotes if it has some. It is not ok for
// what has none, or is the beginning of a list or object.
func mask(value string) (masked string, ok bool) {
	quote := value[:len(value)-len(strings.TrimLeft(value, quotes))]
	inner := strings.TrimSuffix(strings.TrimPrefix(value, quote), quote)
	if !isValue(inner) || quote == "" && opens(inner) {
		return "", false
	}
	return quote + Mark + value[len(quote)+len(inner):], true
}

// opens reports whether a text that is in no quotes begins a list or object.
func opens(s string) bool {
	return strings.HasPrefix(s, "{") || strings.HasPrefix(s, "[") || strings.HasPrefix(s, "map[")
}

// isValue reports whether a text is a secret, and not a word for none or for how one is kept.
func isValue(s string) bool {
	switch strings.ToLower(s) {
	case "", "true", "false", "null", "nil", "<nil>", "none", "|", ">", "|-", ">-":
		return false
	}
	return !strings.HasPrefix(s, Mark)
}
