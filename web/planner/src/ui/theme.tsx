import { useEffect, useState } from 'preact/hooks'
import { Icon } from './icons'

/** The theme that a person chose, or the system's. */
export type Theme = 'system' | 'light' | 'dark'

const themes: Theme[] = ['system', 'light', 'dark']
const names: Record<Theme, string> = { system: 'System theme', light: 'Light theme', dark: 'Dark theme' }
const key = 'berth-planner-theme'

function stored(): Theme {
  try {
    const value = localStorage.getItem(key)
    return themes.find((theme) => theme === value) ?? 'system'
  } catch {
    return 'system' // storage is disabled
  }
}

/** Calls changed when the colours of the page change. Returns a function that ends this. */
export function onThemeChange(changed: () => void): () => void {
  const media = matchMedia('(prefers-color-scheme: dark)')
  media.addEventListener('change', changed)
  const observer = new MutationObserver(changed)
  observer.observe(document.documentElement, { attributeFilter: ['data-theme'] })
  return () => {
    media.removeEventListener('change', changed)
    observer.disconnect()
  }
}

export function ThemeButton() {
  const [theme, setTheme] = useState(stored)
  useEffect(() => {
    document.documentElement.dataset.theme = theme
    try {
      localStorage.setItem(key, theme)
    } catch {
      // Storage is disabled: the choice ends with the page.
    }
  }, [theme])
  const next = themes[(themes.indexOf(theme) + 1) % themes.length]!
  return (
    <button type="button" class="quiet" title={`Switch to ${names[next].toLowerCase()}`} onClick={() => setTheme(next)}>
      <Icon name={theme} />
      <span class="label">{names[theme]}</span>
    </button>
  )
}
