"""browser.py: the page in a headless Chromium, with its errors, its requests and its pictures."""
import base64
import json
import os
import sys
import time

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
except ImportError as missing:
    print(f'SKIP the page: {missing} (Debian: python3-selenium)')
    sys.exit(77)

CHROMIUM, DRIVER = '/usr/bin/chromium', '/usr/bin/chromedriver'
WIDTHS = {'desk': 1200, 'phone': 360}


def require():
    for program in CHROMIUM, DRIVER:
        if not os.path.exists(program):
            print(f'SKIP the page: no {program} (tools/setup test installs it)')
            sys.exit(77)


class Page:
    """The page, opened from disk."""

    def __init__(self, folder):
        options = Options()
        for argument in ('--headless=new', '--no-sandbox', '--disable-gpu',
                         '--disable-dev-shm-usage', '--hide-scrollbars'):
            options.add_argument(argument)
        options.binary_location = CHROMIUM
        options.set_capability('goog:loggingPrefs', {'browser': 'ALL', 'performance': 'ALL'})
        self.folder = os.path.abspath(folder)
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.driver.set_script_timeout(120)
        self.look('desk')

    def close(self):
        self.driver.quit()

    def look(self, width, dark=False, still=False):
        """Sets width, colours and motion."""
        pixels = WIDTHS[width]
        self.driver.execute_cdp_cmd('Emulation.setDeviceMetricsOverride', {
            'width': pixels, 'height': 900, 'deviceScaleFactor': 1, 'mobile': width == 'phone'})
        self.driver.execute_cdp_cmd('Emulation.setEmulatedMedia', {'features': [
            {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'},
            {'name': 'prefers-reduced-motion', 'value': 'reduce' if still else 'no-preference'}]})

    def open(self):
        self.driver.get(f'file://{self.folder}/index.html')
        self.wait('return document.body.dataset.ready', 10)

    def run(self, script, *values):
        return self.driver.execute_script(script, *values)

    def wait(self, script, seconds):
        """The first true answer of a script."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answer = self.run(script)
            if answer:
                return answer
            time.sleep(0.05)
        raise AssertionError(f'not within {seconds} s: {script}')

    def ask(self, name, *values):
        """The text of one of the module's functions."""
        return self.driver.execute_async_script('''
            const [name, values, done] = arguments;
            (async () => {
                globalThis.ownLibrary = globalThis.ownLibrary || await openModule(moduleBytes());
                return ownLibrary.ask(name, ...values);
            })().then(done, (error) => done('failed: ' + error));''', name, list(values))

    def text(self, selector):
        return self.run('return document.querySelector(arguments[0]).textContent', selector)

    def set(self, selector, value):
        """Changes a field as a person does: its value, and the events."""
        self.run('''
            const field = document.querySelector(arguments[0]), value = arguments[1];
            if (field.type === 'checkbox') { field.checked = value; } else { field.value = value; }
            field.dispatchEvent(new Event('input', {bubbles: true}));
            field.dispatchEvent(new Event('change', {bubbles: true}));''', selector, value)

    def click(self, selector):
        self.run('document.querySelector(arguments[0]).click()', selector)

    def table(self, selector):
        """The cells of a table's body, as numbers where they are."""
        rows = self.run('''
            return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map(
                (row) => [...row.cells].map((cell) => cell.textContent));''', selector)
        return [[number(cell) for cell in row] for row in rows]

    def complaints(self):
        """Errors and warnings of the console since the last call."""
        return [entry['message'] for entry in self.driver.get_log('browser')
                if entry['level'] in ('SEVERE', 'WARNING')]

    def requests(self):
        """Addresses that were asked for since the last call."""
        messages = (json.loads(entry['message'])['message']
                    for entry in self.driver.get_log('performance'))
        return [message['params']['request']['url'] for message in messages
                if message['method'] == 'Network.requestWillBeSent']

    def picture(self, name, selector=None):
        """Saves a picture of the page, or of one of its parts."""
        box = self.run('''
            const part = arguments[0] ? document.querySelector(arguments[0]).getBoundingClientRect()
                : {x: 0, y: -scrollY, width: innerWidth,
                   height: document.documentElement.scrollHeight};
            return {x: part.x + scrollX, y: part.y + scrollY, width: part.width,
                    height: part.height, scale: 1};''', selector)
        shot = self.driver.execute_cdp_cmd('Page.captureScreenshot', {
            'captureBeyondViewport': True, 'clip': box})
        with open(name, 'wb') as file:
            file.write(base64.b64decode(shot['data']))


def number(text):
    """A cell as a number; the text if it is none."""
    plain = text.replace('−', '-')
    if plain == '-∞':
        return None
    try:
        return float(plain)
    except ValueError:
        return text
