package main

import (
	"context"
	"errors"
	"io"
)

// modes are those of Berth, in the order of the tables.
var modes = []string{"node", "operator", "pool"}

// raise raises a cluster of the lab with Berth in it.
func (o options) raise(context.Context, io.Writer) (cluster, func() error, error) {
	return cluster{}, nil, errors.New("not there yet")
}
