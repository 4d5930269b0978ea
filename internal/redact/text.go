package redact

import (
	"regexp"
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

// byForm are secrets wherever they stand; $1 is kept.
var byForm = []*regexp.Regexp{
	regexp.MustCompile(`(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`(?i)(\bauthorization\\*["']?\s*[:=]\s*\\*["'\[]*)(?:(?:bearer|basic|digest|negotiate|token|aws4-hmac-sha256)\s+)?[^\s"'\\,\]]+(?:\s*[A-Za-z]+=[^\s"',]+,?)*`),
	regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`),
	regexp.MustCompile(`()\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}\b`),
	regexp.MustCompile(`()\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AIza|hvs\.|AGE-SECRET-KEY-1|sk-(?:live|test|proj)-)[A-Za-z0-9_-]{12,}`),
}

var (
	userinfo  = regexp.MustCompile(`://[^/\s"'<>]*@(sha256:)?`)
	bootstrap = regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`) // kubeadm's tokens
	base64Run = regexp.MustCompile(`[A-Za-z0-9+/=]{40,}`)
	digit     = regexp.MustCompile(`[0-9]`)
	upper     = regexp.MustCompile(`[A-Z]`)
	lower     = regexp.MustCompile(`[a-z]`)

	yamlLine   = regexp.MustCompile(`^(\s*(?:- )?["']?([A-Za-z0-9_./-]+)["']?:\s+)(\S.*)$`)
	assignment = regexp.MustCompile(`([A-Za-z0-9_.$/-]+)(\\*["']?\s*[:=]\s*)(\\+"[^"]*(?:"|$)|"(?:[^"\\]|\\.)*(?:"|$)|'[^']*(?:'|$)|[^\s"',;&}\])]+)`)
	flagValue  = regexp.MustCompile(`(^|[\s"'\[])(--?[A-Za-z][A-Za-z0-9-]*)(["']?,?\s+["']?)([^\s"',-][^\s"',]*)`)
	// mayName is in every name that Secret takes for one of a secret.
	mayName = regexp.MustCompile(`(?i)pass|secret|token|key|auth|cookie|cred|docker|pwd|psk|signature|bindpw`)
)

// Line is one line without secrets. It may end with a newline.
func Line(s string) string {
	text := strings.TrimRight(s, "\r\n")
	return line(text) + s[len(text):]
}

func line(s string) string {
	for _, form := range byForm {
		s = form.ReplaceAllString(s, "${1}"+Mark)
	}
	s = userinfo.ReplaceAllStringFunc(s, func(m string) string {
		if strings.HasSuffix(m, "@sha256:") { // the digest of an image
			return m
		}
		return "://" + Mark + "@"
	})
	s = bootstrap.ReplaceAllStringFunc(s, func(m string) string {
		if digit.MatchString(m[:6]) && digit.MatchString(m[7:]) {
			return Mark
		}
		return m
	})
	s = base64Run.ReplaceAllStringFunc(s, func(m string) string {
		if len(m) == 40 && digit.MatchString(m) && upper.MatchString(m) && lower.MatchString(m) { // an AWS secret access key
			return Mark
		}
		return m
	})
	if !mayName.MatchString(s) {
		return s
	}
	if m := yamlLine.FindStringSubmatch(s); m != nil && Secret(m[2]) && isValue(m[3]) && !strings.HasPrefix(m[3], `"`) {
		return m[1] + Mark
	}
	return flags(named(s))
}

// named takes out values after a secret's name, also within values.
func named(s string) string {
	return assignment.ReplaceAllStringFunc(s, func(m string) string {
		p := assignment.FindStringSubmatch(m)
		name, sep, value := p[1], p[2], p[3]
		quote := value[:len(value)-len(strings.TrimLeft(value, `\"'`))]
		inner := strings.TrimPrefix(value, quote)
		inner = strings.TrimSuffix(inner, quote)
		switch {
		case !Secret(name):
			if quote == "" {
				return name + sep + named(value)
			}
			return name + sep + quote + named(inner) + value[len(quote)+len(inner):]
		case !isValue(inner):
			return m
		}
		return name + sep + quote + Mark + value[len(quote)+len(inner):]
	})
}

func flags(s string) string {
	return flagValue.ReplaceAllStringFunc(s, func(m string) string {
		p := flagValue.FindStringSubmatch(m)
		if !Secret(p[2]) || !isValue(p[4]) {
			return m
		}
		return p[1] + p[2] + p[3] + Mark
	})
}

// isValue tells a secret from what says that there is none, or only how one is kept.
func isValue(s string) bool {
	switch strings.ToLower(s) {
	case "", "true", "false", "null", "nil", "<nil>", "none", "|", ">", "|-", ">-":
		return false
	}
	return !strings.HasPrefix(s, Mark) && !strings.HasPrefix(s, "{") && !strings.HasPrefix(s, "[") && !strings.HasPrefix(s, "map[")
}
