// Package redact takes secrets out of what is shown to others: logs, settings,
// configuration files, Kubernetes objects.
//
//	key.go     which names are those of secrets
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

// Mark is what stands in place of a secret.
const Mark = "REDACTED"
