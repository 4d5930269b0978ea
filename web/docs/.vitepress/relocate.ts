// The built site works below any path: VitePress builds it for a placeholder of a path, and each page finds the real one
// from its own address.
import type { RenderBuiltAssetUrl, Plugin } from 'vite'

export const PLACEHOLDER = '/__berth_base__/'

/** Addresses of files in scripts and style sheets. */
export const relocatable: RenderBuiltAssetUrl = (file, { hostType, ssr }) => {
  if (hostType === 'css') return { relative: true }
  if (hostType === 'js' && !ssr) return { runtime: `globalThis.berthBase+${JSON.stringify(file)}` }
  return undefined
}

/** Addresses of pages in the search index. */
export function relocateSearch(): Plugin {
  return {
    name: 'berth-relocate-search',
    enforce: 'post',
    transform(code, id) {
      if (!id.startsWith('/@localSearchIndex') || !code.includes(PLACEHOLDER)) return null
      return { code: code.replace(/^export default ([\s\S]*?);?$/, `export default ($1).replaceAll("${PLACEHOLDER}", globalThis.berthBase)`), map: null }
    },
  }
}

/**
 * A page of the built site, depth folders below the site's root: addresses are relative, so that it can be read without
 * scripts. Before VitePress takes over they become absolute, as VitePress keeps the navigation from page to page.
 */
export function relocatePage(html: string, depth: number): string {
  const up = '../'.repeat(depth) || './'
  const base = `globalThis.berthBase=new URL(${JSON.stringify(up)},location.href).pathname;`
  const absolute =
    'for(const name of ["href","src"])for(const e of document.querySelectorAll("["+name+"^=\'.\']"))' +
    'e.setAttribute(name,e[name].slice(location.origin.length));' +
    'if(globalThis.__VP_SITE_DATA__)__VP_SITE_DATA__.base=berthBase'
  return html
    .replaceAll(new RegExp(`(\\s(?:href|src)=")${PLACEHOLDER}`, 'g'), `$1${up}`)
    .replace(`\\"base\\":\\"${PLACEHOLDER}\\"`, '\\"base\\":\\"/\\"')
    .replace('<head>', `<head><script>${base}</script>`)
    .replace('</body>', `<script>${absolute}</script></body>`)
}
