// steps.js: a row of controls that goes through steps, forward and backward, or plays them.
'use strict';

// show(step) is called with 0 .. count - 1.
class Stepper {
    constructor(id, name, show) {
        this.show = show;
        this.count = 1;
        this.at = 0;
        this.timer = null;
        const button = (text, label, action, look) => {
            const element = make('button', {
                type: 'button', 'aria-label': label, class: look,
            }, text);
            element.addEventListener('click', action);
            return element;
        };
        this.first = button('⇤', `${name}: first step`, () => this.go(0));
        this.back = button('← Back', `${name}: back`, () => this.go(this.at - 1));
        this.next = button('Next →', `${name}: next`, () => this.go(this.at + 1));
        this.play = button('Play', `${name}: play`, () => this.toggle(), 'play');
        this.slider = make('input', {
            type: 'range', min: 0, value: 0, 'aria-label': `${name}: step`,
        });
        this.slider.addEventListener('input', () => this.go(Number(this.slider.value)));
        this.place = make('output', null);
        $(id).append(this.first, this.back, this.play, this.next, this.slider, this.place);
    }

    reset(count, at = 0) {
        this.count = count;
        this.slider.max = count - 1;
        this.jump(Math.min(at, count - 1));
    }

    go(at) {
        this.stop();
        this.jump(at);
    }

    jump(at) {
        this.at = Math.max(0, Math.min(this.count - 1, at));
        this.slider.value = this.at;
        this.slider.setAttribute('aria-valuetext', `step ${this.at + 1} of ${this.count}`);
        this.place.textContent = `${this.at + 1} / ${this.count}`;
        this.first.disabled = this.back.disabled = this.at === 0;
        this.next.disabled = this.at === this.count - 1;
        this.show(this.at);
    }

    toggle() {
        if (this.timer !== null) {
            this.stop();
            return;
        }
        if (this.at === this.count - 1) {
            this.jump(0);
        }
        this.play.textContent = 'Pause';
        this.timer = setInterval(() => {
            this.jump(this.at + 1);
            if (this.at === this.count - 1) {
                this.stop();
            }
        }, 1100);
    }

    stop() {
        clearInterval(this.timer);
        this.timer = null;
        this.play.textContent = 'Play';
    }
}
