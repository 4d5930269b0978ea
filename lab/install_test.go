package lab

import (
	"reflect"
	"testing"
)

// What is installed twice is the same, or pods are replaced for nothing.
func TestEnvironmentOfAChartHasOneOrder(t *testing.T) {
	of := map[string]string{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "c", "Z": "d"}
	first := env(of)
	for range 50 {
		if again := env(of); !reflect.DeepEqual(again, first) {
			t.Fatalf("%v, then %v", first, again)
		}
	}
}
