package kubeapi

import (
	"context"
	"errors"
)

// Ended tells whether a request failed because its context was over: the daemon
// ends.
func Ended(err error) bool { return errors.Is(err, context.Canceled) }
