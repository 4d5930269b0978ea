// Package redact removes secrets from output: logs, settings, configuration
// files, Kubernetes objects.
//
//	redact.go  names of secrets
//	text.go    text of any kind, line by line
//	value.go   JSON and YAML, by their structure
//	writer.go  streams
//
// It errs on the side of removing too much. It removes values whose name says
// that they are secret (variables, flags, fields, annotations, headers, parts of
// URLs), and secrets that are recognised by their form: private keys, JSON web
// tokens, bearer tokens, AWS keys, passwords in URLs, bootstrap tokens, and
// tokens with the prefixes of well-known services.
package redact

import (
	"slices"
	"strings"
)

// Mark replaces a secret.
const Mark = "REDACTED"

var (
	// anywhere: a name that contains one of these is a secret's.
	anywhere = []string{"password", "passwd", "passphrase", "privatekey", "secretkey", "secretaccesskey", "apikey", "encryptionkey", "presharedkey", "connectionstring", "licensekey", "licencekey"}
	// atEnd: a name that ends with one of these is a secret's.
	atEnd = []string{
		"secret", "token", "accesskey", "accesskeyid", "keydata", "authorization", "auth", "cookie", "credential", "credentials",
		"dockerconfigjson", "dockercfg", "pwd", "pass", "psk", "dsn", "license", "licence", "sessionkey", "signature",
	}
	// notAtEnd: a name that ends with one of these is that of a secret's location or property.
	notAtEnd = []string{"file", "path", "name", "dir", "ref", "seconds", "length", "len", "count", "type", "policy"}
	// harmless names end like a secret's. EC2's client token only makes a request
	// idempotent.
	harmless = []string{"clienttoken", "nexttoken", "requestedtoken"}
	// whole: every text below a name with one of these is secret.
	whole = []string{"password", "passwd", "credential"}
)

// Secret reports whether the name of a variable, flag, field, annotation or
// parameter says that its value is secret.
func Secret(name string) bool {
	name = plain(name)
	if name == "" || slices.Contains(harmless, name) || hasSuffix(name, notAtEnd) {
		return false
	}
	return slices.ContainsFunc(anywhere, func(s string) bool { return strings.Contains(name, s) }) || hasSuffix(name, atEnd)
}

// secretWithin reports whether everything below a name is secret.
func secretWithin(name string) bool {
	name = plain(name)
	return Secret(name) && slices.ContainsFunc(whole, func(s string) bool { return strings.Contains(name, s) })
}

// plain returns a name in lower case without separators, and without the prefix of an
// annotation.
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
