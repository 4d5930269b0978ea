// The site is built from docs/, whose pages also read well on GitHub: links between them are relative and end in .md,
// README.md is the page of its folder, and the index in docs/README.md is the navigation.
import { resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Plugin } from 'vite'
import { defineConfigWithTheme, type DefaultTheme } from 'vitepress'
import { githubSlug, adapt } from './markdown'
import { sidebar } from './navigation'
import { PLACEHOLDER, relocatable, relocateSearch } from './relocate'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const version = process.env.DOCS_VERSION ?? 'dev'
const docs = resolve(root, process.env.DOCS_SOURCE ?? 'docs')
// Pages that are rendered in this process are built for the placeholder.
Object.assign(globalThis, { berthBase: PLACEHOLDER })

const serving = process.argv[2] === 'dev'

// Pages are outside of the npm workspace, and import what this file can.
const packagesOfPages: Plugin = {
  name: 'berth-packages-of-pages',
  enforce: 'pre',
  resolveId(source, importer) {
    if (!/^vue($|\/)/.test(source) || !importer?.startsWith(docs)) return null
    return this.resolve(source, resolve(root, 'web/docs/package.json'), { skipSelf: true })
  },
}

export default defineConfigWithTheme<DefaultTheme.Config & { version: string }>({
  title: 'Berth',
  description: 'Kubernetes CNI plugin that gives every pod a real address of its network',
  lang: 'en',
  srcDir: docs,
  outDir: resolve(root, process.env.DOCS_OUT ?? `dist/docs/${version}`),
  cacheDir: resolve(root, 'web/node_modules/.cache/docs'),
  base: serving ? '/' : PLACEHOLDER,
  rewrites: (page) => page.replace(/README\.md$/, 'index.md'),
  head: [['link', { rel: 'icon', href: "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'><path d='M8 1v13M2 9a6 5 0 0 0 12 0M5 5h6' fill='none' stroke='%232f6fde' stroke-width='2'/></svg>" }]],
  markdown: {
    // The usual themes are too pale for the background of blocks (WCAG 2.1, 1.4.3).
    theme: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    anchor: { slugify: githubSlug },
    config: (md) => adapt(md, docs, /^v\d+\.\d+\.\d+$/.test(version) ? version : 'main'),
  },
  themeConfig: {
    search: { provider: 'local' },
    outline: { level: [2, 3] },
    nav: [
      { text: 'Start', link: '/start/which-mode', activeMatch: '/start/' },
      { text: 'Guides', link: '/guides/install/', activeMatch: '/guides/' },
      { text: 'Troubleshoot', link: '/troubleshoot/', activeMatch: '/troubleshoot/' },
      { text: 'Alerts', link: '/alerts/', activeMatch: '/alerts/' },
      { text: 'Reference', link: '/reference/configuration', activeMatch: '/reference/' },
    ],
    sidebar: sidebar(docs),
    socialLinks: [{ icon: 'github', link: 'https://github.com/berthnet/berth' }],
    version,
  },
  vite: {
    define: serving ? {} : { 'import.meta.env.BASE_URL': 'globalThis.berthBase' },
    plugins: [packagesOfPages, ...(serving ? [] : [relocateSearch()])],
    build: { chunkSizeWarningLimit: 4096 },
    experimental: serving ? {} : { renderBuiltUrl: relocatable },
    server: { fs: { allow: [docs, root] } },
  },
  buildEnd: async (site) => (await import('./finish')).finish(site.outDir),
})
