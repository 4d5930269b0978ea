package eni

import (
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/source"
)

var famENIs = metric.New("berth_enis", "gauge", "ENIs of this node that carry pods, and the primary one in any case.")

// Reference is what this source adds to the page of metrics.
var Reference = source.Reference{Families: []metric.Family{famENIs}}
