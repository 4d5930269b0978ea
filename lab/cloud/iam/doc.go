// Package iam decides as AWS IAM does whether identity-based policies let a
// call of EC2 pass: the IAM User Guide's "Policy evaluation logic", "IAM JSON
// policy elements: Condition operators" and "Multivalued context keys", for the
// elements and condition keys that are listed here. A policy with anything else
// is refused when it is parsed, rather than judged wrongly.
//
// It is pure: which resources a call names, and what tags they carry, is for
// the caller to say.
package iam
