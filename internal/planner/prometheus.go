package planner

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The queries of a history. Berth's metrics are required, those of kube-state-metrics are not.
const (
	queryPods     = `sum(berth_addresses{state="used"})`
	queryStarts   = `sum(increase(berth_cni_requests_total{verb="ADD",result="success"}[%s]))`
	queryNodes    = `count(berth_build_info)`
	queryReplicas = `sum by (namespace, deployment) (kube_deployment_spec_replicas)`
	queryUpdated  = `sum by (namespace, deployment) (kube_deployment_status_replicas_updated)`
)

// maxAnswer bounds an answer of Prometheus, in bytes.
const maxAnswer = 64 << 20

// ReadHistory reads the workload of the time before now from Prometheus. The error names the query.
func ReadHistory(ctx context.Context, client *http.Client, base string, window time.Duration, now time.Time) (*History, error) {
	if window < time.Hour || window > MaxDuration {
		return nil, fmt.Errorf("a history of %v: expected %v to %v", window, time.Hour, MaxDuration)
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q: expected the URL of Prometheus, such as http://localhost:9090", base)
	}
	step := max(time.Minute, (window / (maxList - 1)).Truncate(time.Second))
	p := prometheus{client: client, base: u.JoinPath("api/v1/query_range"), end: now.Truncate(time.Second), step: step, n: int(window/step) + 1}
	h := &History{Step: step, Replicas: map[string][]int{}, Updated: map[string][]int{}}
	for _, q := range []struct {
		to    *[]int
		query string
	}{{&h.Pods, queryPods}, {&h.Starts, fmt.Sprintf(queryStarts, strconv.Itoa(int(step.Seconds()))+"s")}, {&h.Nodes, queryNodes}} {
		list, err := p.ask(ctx, q.query)
		if err != nil {
			return nil, err
		}
		if len(list) != 1 {
			return nil, fmt.Errorf("prometheus, query %s: %d series, expected 1: check that Prometheus scrapes berthd", q.query, len(list))
		}
		*q.to = p.values(list[0])
	}
	for _, q := range []struct {
		to    map[string][]int
		query string
	}{{h.Replicas, queryReplicas}, {h.Updated, queryUpdated}} {
		list, err := p.ask(ctx, q.query)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			q.to[s.Metric["namespace"]+"/"+s.Metric["deployment"]] = p.values(s)
		}
	}
	return h, nil
}

// prometheus asks for values at the same times.
type prometheus struct {
	client *http.Client
	base   *url.URL
	end    time.Time
	step   time.Duration
	n      int
}

// series is one series of an answer: pairs of a time in seconds and a number as text.
type series struct {
	Metric map[string]string    `json:"metric"`
	Values [][2]json.RawMessage `json:"values"`
}

func (p prometheus) start() time.Time { return p.end.Add(-p.step * time.Duration(p.n-1)) }

func (p prometheus) ask(ctx context.Context, query string) ([]series, error) {
	failed := func(err error) ([]series, error) { return nil, fmt.Errorf("prometheus, query %s: %w", query, err) }
	u := *p.base
	u.RawQuery = url.Values{
		"query": {query}, "start": {strconv.FormatInt(p.start().Unix(), 10)}, "end": {strconv.FormatInt(p.end.Unix(), 10)}, "step": {strconv.Itoa(int(p.step.Seconds()))},
	}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return failed(err)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return failed(err)
	}
	if len(body) > maxAnswer {
		return failed(fmt.Errorf("the answer exceeds %d MiB", maxAnswer>>20))
	}
	var answer struct {
		Status string `json:"status"`
		Error  string `json:"error"`
		Data   struct {
			ResultType string   `json:"resultType"`
			Result     []series `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return failed(fmt.Errorf("HTTP status %d, and the answer is not Prometheus's: %w", resp.StatusCode, err))
	}
	if answer.Status != "success" || answer.Data.ResultType != "matrix" {
		return failed(fmt.Errorf("status %q, type %q: %s", answer.Status, answer.Data.ResultType, answer.Error))
	}
	return answer.Data.Result, nil
}

// values returns a series with one number for each step. A missing value is replaced by the previous one, or by the first
// one at the beginning.
func (p prometheus) values(s series) []int {
	out := make([]int, p.n)
	last, first := 0, -1
	next := 0
	for i := range out {
		at := p.start().Add(p.step * time.Duration(i)).Unix()
		for next < len(s.Values) {
			sec, err := strconv.ParseFloat(string(s.Values[next][0]), 64)
			if err != nil || int64(sec) > at {
				break
			}
			if v, err := strconv.ParseFloat(strings.Trim(string(s.Values[next][1]), `"`), 64); err == nil && v >= 0 && v < 1e9 {
				last = int(math.Round(v))
				if first < 0 {
					first = i
				}
			}
			next++
		}
		out[i] = last
	}
	for i := range max(0, first) {
		out[i] = out[first]
	}
	return out
}
