import { useEffect, useRef, useState } from 'preact/hooks'
import { type Abilities, Refusal, type Result, type Scenario, abilities as fetchAbilities, examples as fetchExamples, simulate } from './api'
import { Editor } from './editor/editor'
import { json, read, yaml } from './files'
import { Results } from './results/results'
import { blank, change, located } from './scenario'
import { Edit, type FieldError } from './ui/fields'
import { download, fileName, short } from './ui/format'
import { Icon } from './ui/icons'
import { reveal } from './ui/list'
import { ThemeButton } from './ui/theme'

/** What went wrong, and in which fields. */
interface Problem {
  message: string
  fields: FieldError[]
}

const draftKey = 'berth-planner-scenario'

/** The scenario that this tab had before a reload. */
function draft(): Scenario | null {
  try {
    const text = sessionStorage.getItem(draftKey)
    return text ? (JSON.parse(text) as Scenario) : null
  } catch {
    return null // storage is disabled, or has something else
  }
}

export function App() {
  const [abilities, setAbilities] = useState<Abilities>()
  const [examples, setExamples] = useState<Scenario[]>([])
  const [before] = useState(draft)
  const [scenario, setScenario] = useState<Scenario>(before ?? blank)
  const [problem, setProblem] = useState<Problem | null>(null)
  const [result, setResult] = useState<{ of: Scenario; result: Result } | null>(null)
  const [status, setStatus] = useState('')
  const running = useRef<AbortController | null>(null)
  const [busy, setBusy] = useState(false)
  const summary = useRef<HTMLHeadingElement>(null)

  useEffect(() => {
    const fail = (error: unknown) => setProblem(problemOf(error))
    fetchAbilities().then(setAbilities, fail)
    fetchExamples().then((list) => {
      setExamples(list)
      const wanted = list.find((example) => example.name === decodeURIComponent(location.hash.slice(1))) ?? (before ? undefined : list[0])
      if (wanted) setScenario(wanted)
    }, fail)
  }, [])
  useEffect(() => {
    try {
      sessionStorage.setItem(draftKey, JSON.stringify(scenario))
    } catch {
      // Storage is disabled: a reload loses the scenario.
    }
  }, [scenario])
  useEffect(() => {
    if (problem) summary.current?.focus()
  }, [problem])

  // Where the results are below the form, they come into view.
  useEffect(() => {
    if (result && matchMedia('(max-width: 980px)').matches) document.getElementById('results')?.scrollIntoView()
  }, [result])

  const load = (next: Scenario, from: string) => {
    setScenario(next)
    setProblem(null)
    setStatus(`Loaded ${from}.`)
  }
  const open = async (file: File) => {
    try {
      load(read(await file.text()), file.name)
    } catch (error) {
      setProblem({ message: `${file.name} is not a scenario file: ${(error as Error).message}`, fields: [] })
    }
  }
  const run = async () => {
    running.current?.abort()
    const current = (running.current = new AbortController())
    setBusy(true)
    setStatus('Simulating …')
    try {
      const reply = await simulate(scenario, current.signal)
      setProblem(null)
      setResult({ of: scenario, result: reply })
      const count = reply.alternatives.length
      setStatus(`Simulated ${short(reply.duration)} of ${count} ${count === 1 ? 'alternative' : 'alternatives'}.`)
    } catch (error) {
      if (current.signal.aborted) return
      const { message, fields } = problemOf(error)
      setProblem({ message, fields: located(fields, scenario) })
      setStatus('')
    }
    if (running.current === current) setBusy(false)
  }
  const cancel = () => {
    running.current?.abort()
    setBusy(false)
    setStatus('Cancelled.')
  }
  const save = (format: 'yaml' | 'json') => {
    const text = format === 'yaml' ? yaml(scenario) : json(scenario)
    download(`${fileName(scenario.name || 'scenario')}.${format}`, new Blob([text], { type: `application/${format}` }))
  }

  return (
    <>
      <a class="skip" href="#results-area">
        Skip to the results
      </a>
      <header class="top">
        <h1>
          <svg class="icon" viewBox="0 0 16 16" width="22" height="22" aria-hidden="true" focusable="false">
            <path d="M8 4.500v9M5.500 6.500h5M2.500 9.500a5.500 4.500 0 0 0 11 0M8 1.500a1.500 1.500 0 1 0 0 3 1.500 1.500 0 0 0 0-3z" />
          </svg>
          Berth planner
        </h1>
        <div class="actions">
          <label class="hidden" for="example">
            Load an example
          </label>
          <select
            id="example"
            class="example"
            value=""
            onChange={(event) => {
              const example = examples.find((each) => each.name === event.currentTarget.value)
              event.currentTarget.value = ''
              if (example) load(example, `the example ${example.name}`)
            }}
          >
            <option value="">Examples …</option>
            {examples.map((example) => (
              <option key={example.name} value={example.name}>
                {example.name}
              </option>
            ))}
          </select>
          <button type="button" onClick={() => load(blank, 'a new scenario')}>
            <Icon name="add" /> <span class="label">New</span>
          </button>
          <label class="button">
            <Icon name="open" /> <span class="label">Open</span>
            <input
              type="file"
              class="hidden"
              accept=".yaml,.yml,.json"
              aria-label="Open a scenario file"
              onChange={(event) => {
                const file = event.currentTarget.files?.[0]
                event.currentTarget.value = ''
                if (file) void open(file)
              }}
            />
          </label>
          <button type="button" onClick={() => save('yaml')} aria-label="Save the scenario as YAML">
            <Icon name="save" /> YAML
          </button>
          <button type="button" onClick={() => save('json')} aria-label="Save the scenario as JSON">
            <Icon name="save" /> JSON
          </button>
          <ThemeButton />
        </div>
      </header>
      <Edit.Provider value={{ document: scenario, errors: problem?.fields ?? [], change: (path, value) => setScenario((old) => change(old, path, value)) }}>
        <main class="columns">
          <form
            class="scenario"
            aria-labelledby="scenario-title"
            noValidate
            onSubmit={(event) => {
              event.preventDefault()
              void run()
            }}
          >
            <div class="bar">
              <h2 id="scenario-title">Scenario</h2>
              {busy ? (
                <button type="button" onClick={cancel}>
                  Cancel
                </button>
              ) : (
                <button type="submit" class="primary">
                  <Icon name="run" /> Simulate
                </button>
              )}
            </div>
            <p class="status" role="status" aria-live="polite">
              {status}
            </p>
            {problem && (
              <section class="errors" aria-labelledby="problem">
                <h2 id="problem" tabIndex={-1} ref={summary}>
                  {problem.message}
                </h2>
                <ul>
                  {problem.fields.map((field) => (
                    <li key={field.path + field.message}>
                      <a
                        href={`#field-${field.path}`}
                        onClick={(event) => {
                          event.preventDefault()
                          reveal(field.path)
                        }}
                      >
                        {field.path || 'scenario'}
                      </a>
                      : {field.message}
                    </li>
                  ))}
                </ul>
              </section>
            )}
            <Editor scenario={scenario} abilities={abilities} />
          </form>
          <div class="results" id="results-area" tabIndex={-1}>
            {result ? (
              <Results result={result.result} stale={result.of !== scenario} />
            ) : (
              <section class="panel empty">
                <h2>No results yet</h2>
                <p>
                  Load an example or describe your cluster, and choose <b>Simulate</b>. The simulation runs Berth's own address management against a
                  simulated EC2: addresses, ENIs, calls and waits are counted, not estimated.
                </p>
              </section>
            )}
          </div>
        </main>
      </Edit.Provider>
      <footer>
        Berth {abilities?.version}. Works without a network. <a href="licenses.txt">Licences of the page's libraries</a>
      </footer>
    </>
  )
}

function problemOf(error: unknown): Problem {
  if (error instanceof Refusal) return { message: error.message, fields: error.fields }
  return { message: error instanceof Error ? error.message : String(error), fields: [] }
}
