// Package redact takes secrets out of what is shown to others: logs, settings,
// configuration files, Kubernetes objects.
//
//	redact.go  which names are those of secrets
//	text.go    text of any kind, by lines
//	value.go   JSON and YAML, by their structure
//	writer.go  streams
//
// It errs on the side of taking out too much. What it looks for: values whose
// name says that they are secret (variables, flags, fields, annotations, headers,
// parts of URLs), and what is a secret by its form wherever it stands: private
// keys, JSON web tokens, bearer tokens, AWS keys, passwords in URLs, bootstrap
// tokens, and tokens with the prefixes of well-known services.
package redact

import (
	"slices"
	"strings"
)

// Mark is what stands in place of a secret.
const Mark = "REDACTED"

var (
	// anywhere in a name makes it a secret's.
	anywhere = []string{"password", "passwd", "passphrase", "privatekey", "secretkey", "secretaccesskey", "apikey", "encryptionkey", "presharedkey", "connectionstring", "licensekey", "licencekey"}
	// atEnd makes it one at its end.
	atEnd = []string{
		"secret", "token", "accesskey", "accesskeyid", "keydata", "authorization", "auth", "cookie", "credential", "credentials",
		"dockerconfigjson", "dockercfg", "pwd", "pass", "psk", "dsn", "license", "licence", "sessionkey", "signature",
	}
	// notAtEnd: such a name is that of the place of a secret, or of one of its properties.
	notAtEnd = []string{"file", "path", "name", "dir", "ref", "seconds", "length", "len", "count", "type", "policy"}
	// harmless names end like a secret's. EC2's client token makes a request
	// idempotent, and permits nothing.
	harmless = []string{"clienttoken", "nexttoken", "requestedtoken"}
	// whole: every text below such a name is secret.
	whole = []string{"password", "passwd", "credential"}
)

// Secret reports whether a name, of a variable, flag, field, annotation or
// parameter, says that its value is secret.
func Secret(name string) bool {
	name = plain(name)
	if name == "" || slices.Contains(harmless, name) || hasSuffix(name, notAtEnd) {
		return false
	}
	return slices.ContainsFunc(anywhere, func(s string) bool { return strings.Contains(name, s) }) || hasSuffix(name, atEnd)
}

// secretWithin reports whether all that a name has below it is secret.
func secretWithin(name string) bool {
	name = plain(name)
	return Secret(name) && slices.ContainsFunc(whole, func(s string) bool { return strings.Contains(name, s) })
}

// plain is a name in lower case without what its parts are joined by, and without a prefix
// such as that of an annotation.
func plain(name string) string {
	name = name[strings.LastIndexByte(name, '/')+1:]
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return -1
	}, name)
}

func hasSuffix(name string, of []string) bool {
	return slices.ContainsFunc(of, func(s string) bool { return strings.HasSuffix(name, s) })
}
